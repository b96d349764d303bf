"""Ends the jobs that nobody waits for any more.

Some ends of a task call no hook of ours: its process was killed and no try is left, a triggerer was
down when the task was marked failed, the run was deleted. So what runs is compared with what Airflow
says of its tasks, now and then, and what nobody owns is ended. In doubt a job is left alone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from muster.airflow.attempts.standing import over
from muster.core.errors import Corrupt, MusterError, NotFound
from muster.core.job import Origin
from muster.core.status import JobStatus

if TYPE_CHECKING:
    from muster.backends.base import Backend

States = Callable[[Origin], str | None]
"""How a task instance stands, as :func:`muster.airflow.attempts.standing.ask` says."""

YOUNG_SECONDS = 60.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Swept:
    """A job that was ended, and why."""

    job_id: str
    task: str
    reason: str


class Origins:
    """What never changes of the jobs that were looked at, so that a sweep reads of each only how it stands."""

    def __init__(self) -> None:
        self._of: dict[str, Origin] = {}
        self._ended: set[str] = set()

    def running(self, backend: Backend, *, but: Collection[str]) -> Iterator[tuple[JobStatus, Origin]]:
        """Every job that has not ended, with the task that asked for it; those that cannot be read are left out."""
        there = backend.store.ledger.jobs()
        statuses = backend.statuses([each for each in there if each not in self._ended and each not in but])
        self._ended = self._ended.intersection(there) | {
            job_id for job_id, status in statuses.items() if status.state.ended
        }
        self._of = {job_id: origin for job_id, origin in self._of.items() if job_id in statuses}
        for job_id, status in statuses.items():
            if not status.state.ended:
                with suppress(
                    NotFound, Corrupt
                ):  # gc took it meanwhile; what cannot be read is for fsck to tell
                    yield status, self._origin(backend, job_id)

    def _origin(self, backend: Backend, job_id: str) -> Origin:
        if job_id not in self._of:
            self._of[job_id] = backend.store.ledger.spec(job_id).origin
        return self._of[job_id]


def sweep(
    backend: Backend,
    instance: str,
    states: States,
    *,
    but: Collection[str] = frozenset(),
    known: Origins | None = None,
) -> list[Swept]:
    """End the jobs of one Airflow that nobody owns; return which, and do not wait for their processes.

    :param instance: the Airflow's name; jobs of others are none of its business.
    :param states: is asked once for each task instance that has a job to judge.
    :param but: jobs that are known to be waited for.
    :param known: what sweeps before this one have read.
    """
    mine = [
        (status, origin)
        for status, origin in (known or Origins()).running(backend, but=but)
        if origin.instance == instance and origin.run_id
    ]
    return [swept for status, swept in unowned(mine, states, now=time.time()) if _end(backend, status)]


def unowned(
    jobs: Iterable[tuple[JobStatus, Origin]], states: States, *, now: float
) -> list[tuple[JobStatus, Swept]]:
    """Choose the jobs to end among those that have not ended; what was just begun is left alone.

    A task has one job at a time, so of several the newest is the one that is meant.
    """
    of_task: dict[Origin, list[JobStatus]] = {}
    for status, origin in jobs:
        of_task.setdefault(origin, []).append(status)
    found = []
    for origin, started in of_task.items():
        newest = max(started, key=lambda status: status.submitted)
        grown = [status for status in started if now - status.submitted >= YOUNG_SECONDS]
        state = states(origin) if grown else None
        reason = f"its task is {state}" if over(state) else "its task has begun another"
        found += [
            (status, Swept(job_id=status.job_id, task=_name(origin), reason=reason))
            for status in grown
            if over(state) or status is not newest
        ]
    return found


def _end(backend: Backend, status: JobStatus) -> bool:
    """End a job in its owner's name: a try that adopts it at this moment keeps it."""
    try:
        backend.cancel(status.job_id, owner=status.owner, wait=False)
    except MusterError as error:  # the others are ended all the same, and this one is tried again
        log.warning("job %s, which nobody owns, cannot be ended: %s", status.job_id, error)
        return False
    return True


def _name(origin: Origin) -> str:
    index = f"[{origin.map_index}]" if origin.map_index >= 0 else ""
    return f"{origin.dag_id}.{origin.task_id}{index} of {origin.run_id}"
