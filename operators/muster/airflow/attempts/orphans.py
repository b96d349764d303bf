"""Ends the jobs that no task waits for any more, and takes back the releases that no task watches: each task's state is asked for.

The triggerer does this now and then (:mod:`muster.airflow.attempts.reconciling`); a task does it for an Airflow
whose triggerer is away. In doubt a job or a release is left alone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from muster.airflow.attempts.task_state import GIVEN_UP, over
from muster.backends.releases.manual import give_up, tidy
from muster.core.cancelling import OVERTAKEN, with_task
from muster.core.deployment import DeploymentStatus
from muster.core.errors import Corrupt, MusterError, NotFound
from muster.core.origin import Origin
from muster.core.status import JobStatus
from muster.core.verdict import Verdict

if TYPE_CHECKING:
    from muster.backends.base import Backend
    from muster.backends.releases.deployments import Deployments

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


@dataclass(frozen=True, kw_only=True)
class TakenBack:
    """A release that was taken back, who had asked for it, and why."""

    deployment: str
    revision: str
    by: str
    reason: str


def take_back(deployments: Deployments, instance: str, states: States) -> list[TakenBack]:
    """Take back the releases of one Airflow whose tasks are over, and not as a success; return which.

    Where a task is marked failed between its deferral and its trigger's start, or while no triggerer runs, or where
    its run is deleted, Airflow calls no hook of ours, and a canary would keep its share whatever it answers.

    :param instance: the Airflow's name; releases of others, and of people, are none of its business.
    :param states: is asked for the task of each release that is not young.
    """
    return [
        taken for name in deployments.names() if (taken := _take_back(deployments, name, instance, states))
    ]


def unwatched(status: DeploymentStatus, instance: str, states: States, *, now: float) -> TakenBack | None:
    """Say what to take back of a deployment; None where nothing is.

    What is held waits for a person as it was told to, and what has just got its share has its driver.
    """
    release = status.release
    if release is None or release.held or release.origin is None or release.origin.instance != instance:
        return None
    if now - release.since < YOUNG_SECONDS or (state := states(release.origin)) not in GIVEN_UP:
        return None
    reason = release.failed or f"its task is {state}, and no task watches it any more"
    return TakenBack(deployment=status.name, revision=release.revision, by=release.by, reason=reason)


def _take_back(deployments: Deployments, name: str, instance: str, states: States) -> TakenBack | None:
    """Take back what was seen, unless the route was written since: then it is looked at the next time."""
    try:
        status = deployments.deployment(name)
        found = unwatched(status, instance, states, now=time.time())
        if found:
            give_up(deployments, status, reason=found.reason)
            tidy(deployments, name)
    except MusterError as error:  # the others are looked at all the same, and this one is tried again
        log.warning("whether the release of %s is watched cannot be seen to now: %s", name, error)
        return None
    return found
