"""How far ``muster run`` has shown a job's log, so that a run which goes on after a kill does not show all of it again.

A task under a scheduler needs none of it: each of its tries has a log of its own, which is whole.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from airflow.sdk.exceptions import AirflowRuntimeError

_EVERY_SECONDS = 1.0


class Shown:
    """A mark in Airflow's ``task_state_store``, which outlives the process.

    It is behind by a second or two: what a kill kept from the screen is shown again rather than never.

    :param key: the attempt's. :param job_id: a mark of another job does not count. :ivar before: the offset that is marked.
    """

    def __init__(
        self, store: Any, key: str, job_id: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store, self._key, self._job_id, self._clock = store, f"shown.{key}", job_id, clock
        job, _, offset = str(store.get(self._key) or "").partition(" ")
        self.before = self._next = int(offset) if job == job_id else 0
        self._due = clock() + _EVERY_SECONDS

    def note(self, offset: int) -> None:
        """Take in that the log up to here was shown. Call it about once a second, also where nothing came."""
        if self._clock() < self._due:
            return
        if self._next != self.before:
            from airflow.sdk.execution_time.context import NEVER_EXPIRE

            with suppress(
                AirflowRuntimeError
            ):  # refused where the task was cleared: its next try has another job
                self._store.set(self._key, f"{self._job_id} {self._next}", retention=NEVER_EXPIRE)
        self.before, self._next, self._due = self._next, offset, self._clock() + _EVERY_SECONDS
