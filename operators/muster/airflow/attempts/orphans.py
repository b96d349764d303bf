"""Ends the jobs that no task waits for any more, as a task of Airflow's can: it is asked how each task stands.

The triggerer does this every few seconds (:mod:`muster.airflow.attempts.reconciling`); a task does it for an Airflow
whose triggerer is away. In doubt a job is left alone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from muster.airflow.attempts.task_state import over
from muster.core.cancelling import OVERTAKEN, with_task
from muster.core.errors import Corrupt, MusterError, NotFound
from muster.core.origin import Origin
from muster.core.status import JobStatus
from muster.core.verdict import Verdict

if TYPE_CHECKING:
    from muster.backends.base import Backend

States = Callable[[Origin], str | None]
"""How a task instance stands, as :func:`muster.airflow.attempts.task_state.ask` says."""

YOUNG_SECONDS = 60.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class SweptJob:
    """A job that was ended, and why."""

    job_id: str
    task: str
    why: Verdict


def sweep(backend: Backend, instance: str, states: States) -> list[SweptJob]:
    """End the jobs of one Airflow that no task waits for; return which, and do not wait for their processes.

    :param instance: the Airflow's name; jobs of others are none of its business.
    :param states: is asked once for each task instance that has a job to judge.
    """
    mine = [
        (status, origin)
        for status, origin in _running(backend)
        if origin.instance == instance and origin.run_id
    ]
    return [swept for status, swept in unowned(mine, states, now=time.time()) if end(backend, status, swept)]


def _running(backend: Backend) -> Iterator[tuple[JobStatus, Origin]]:
    """Every job that has not ended, with the task that asked for it; those that cannot be read are left out."""
    ledger = backend.store.ledger
    for job_id, status in backend.statuses(ledger.jobs()).items():
        if not status.state.ended:
            with suppress(NotFound, Corrupt):  # gc took it meanwhile; what cannot be read is for fsck to tell
                yield status, ledger.spec(job_id).origin


def unowned(
    jobs: Iterable[tuple[JobStatus, Origin]], states: States, *, now: float
) -> list[tuple[JobStatus, SweptJob]]:
    """Choose the jobs to end among those that have not ended; what was just begun is left alone.

    A task has one job at a time, so of several the newest is the one that is meant.
    """
    found = []
    for origin, started in _by_task(jobs).items():
        newest = max(started, key=lambda status: status.submitted)
        grown = [status for status in started if now - status.submitted >= YOUNG_SECONDS]
        state = states(origin) if grown else None
        why = with_task(state) if over(state) else OVERTAKEN
        found += [
            (status, SweptJob(job_id=status.job_id, task=named(origin), why=why))
            for status in grown
            if over(state) or status is not newest
        ]
    return found


def end(backend: Backend, status: JobStatus, swept: SweptJob) -> bool:
    """End a job in its owner's name: a try that adopts it at this moment keeps it."""
    try:
        backend.cancel(status.job_id, owner=status.owner, wait=False, why=swept.why)
    except MusterError as error:  # the others are ended all the same, and this one is tried again
        log.warning("job %s, which no task waits for, cannot be ended: %s", status.job_id, error)
        return False
    return True


def named(origin: Origin) -> str:
    """What people call a task instance."""
    return f"{origin.dag_id}.{origin.stage} of {origin.run_id}"


def _by_task(jobs: Iterable[tuple[JobStatus, Origin]]) -> dict[Origin, list[JobStatus]]:
    of_task: dict[Origin, list[JobStatus]] = {}
    for status, origin in jobs:
        of_task.setdefault(origin, []).append(status)
    return of_task
