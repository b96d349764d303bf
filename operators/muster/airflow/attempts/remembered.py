"""What a task has started: its retries remember it, and a cleared task forgets it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from muster.core.deployment import DeploymentSpec
from muster.core.errors import SpecError

if TYPE_CHECKING:
    from muster.airflow.attempts.run import TaskRun

Action = Literal["release", "rollback", "search"]
KEYS = frozenset(f"begun.{action}" for action in get_args(Action))


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A release that a task has asked for, kept for its next tries: by then ``@latest`` may mean another version."""

    revision: str
    spec: DeploymentSpec


class Remembered:
    """One action that a task starts once in all its tries; a cleared task starts it again.

    It is kept in Airflow's ``task_state_store``, which outlives the task's process and its retries.

    :param what: the name of the action.
    """

    def __init__(self, task: TaskRun, what: Action) -> None:
        self._store = task.context["task_state_store"]
        self._key = f"begun.{what}"
        # Airflow raises the first by the second when an ended task is cleared.
        self._series = {"max_tries": task.max_tries, "retries": task.retries}
        self._try = task.owner

    def recall(self) -> str | None:
        """Return what an earlier try wrote; None where nothing was started.

        :raises SpecError: something else is stored.
        """
        stored = self._store.get(self._key)
        if stored is None:
            return None
        if not isinstance(stored, Mapping) or not isinstance(stored.get("begun"), str):
            raise SpecError(f"task_state_store holds {stored!r:.80} as {self._key}: clear the task")
        begun = str(stored["begun"])
        if stored.get("try") != self._try:  # else it was deferred, and by now the Dag may say other retries
            if any(stored.get(name) != number for name, number in self._series.items()):
                return None
            self.remember(begun)
        return begun

    def remember(self, begun: str) -> None:
        """Write it down. Airflow refuses that to a try that is no longer the task's own."""
        from muster.airflow.upstream.internals import NEVER_EXPIRE

        self._store.set(self._key, {"begun": begun, "try": self._try, **self._series}, retention=NEVER_EXPIRE)
