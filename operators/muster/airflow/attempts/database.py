"""How the tries that own jobs stand, read from Airflow's database; for processes that may read it, as the triggerer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

from muster.airflow.attempts.task_state import GONE
from muster.core.errors import BackendError
from muster.core.origin import Origin
from muster.core.status import JobStatus

if TYPE_CHECKING:
    from datetime import datetime

    from sqlalchemy.orm import Session

_AT_ONCE = 200  # jobs that one query is about

_Task = tuple[str, str, str, int]


@dataclass(frozen=True, kw_only=True)
class Standing:
    """How the task of a job stands, and the try that owns the job.

    :param state: of the task instance now; :data:`~muster.airflow.attempts.task_state.GONE` where there is none.
    :param run_failed: whether its Dag run has failed.
    :param cleared: whether the task was cleared since that try began.
    :param outcome: how that try ended, or None; `ended` when, in seconds since the epoch.
    """

    state: str | None
    run_failed: bool = False
    cleared: bool = False
    outcome: str | None = None
    ended: float | None = None


def standings(jobs: Sequence[tuple[JobStatus, Origin]]) -> dict[str, Standing]:
    """Return how the task of each job stands, by the job's id. :raises BackendError: the database does not answer."""
    from airflow.utils.session import create_session
    from sqlalchemy.exc import DBAPIError

    found: dict[str, Standing] = {}
    for first in range(0, len(jobs), _AT_ONCE):
        some = jobs[first : first + _AT_ONCE]
        try:
            with create_session() as session:
                tasks, tries = _tasks(session, some), _tries(session, some)
        except DBAPIError as error:
            raise BackendError(f"Airflow's database does not answer: {error.orig}") from error
        found |= {
            status.job_id: _standing(tasks.get(_key(origin)), tries.get(status.owner or ""), status.owner)
            for status, origin in some
        }
    return found


def _standing(task: Any, before: Any, owner: str | None) -> Standing:
    """Compare a task instance as it is with what is kept of the try that owns the job."""
    if task is None:
        return Standing(state=GONE)
    now = Standing(state=_text(task.state), run_failed=_text(task.run_state) == "failed")
    if str(task.id) == owner:
        return replace(now, outcome=now.state, ended=_seconds(task.end_date))
    if before is None:  # Airflow keeps nothing of a try that it never recorded
        return now
    cleared = task.max_tries != before.max_tries
    return replace(now, cleared=cleared, outcome=_text(before.state), ended=_seconds(before.end_date))


def _tasks(session: Session, jobs: Sequence[tuple[JobStatus, Origin]]) -> Mapping[_Task, Any]:
    """The task instances as they are now."""
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance as Task
    from sqlalchemy import select

    wanted = {_key(origin) for _, origin in jobs}
    dags, runs, tasks, indices = (set(part) for part in zip(*wanted, strict=True))
    rows = session.execute(
        select(
            Task.id,
            Task.dag_id,
            Task.run_id,
            Task.task_id,
            Task.map_index,
            Task.state,
            Task.end_date,
            Task.max_tries,
            DagRun.state.label("run_state"),
        )
        .join(DagRun, (DagRun.dag_id == Task.dag_id) & (DagRun.run_id == Task.run_id))
        .where(
            Task.run_id.in_(runs), Task.dag_id.in_(dags), Task.task_id.in_(tasks), Task.map_index.in_(indices)
        )
    )
    return {(row.dag_id, row.run_id, row.task_id, row.map_index): row for row in rows}


def _tries(session: Session, jobs: Sequence[tuple[JobStatus, Origin]]) -> Mapping[str, Any]:
    """What is kept of tries that are over, by their ids."""
    from airflow.models.taskinstancehistory import TaskInstanceHistory as Past
    from sqlalchemy import select

    rows = session.execute(
        select(Past.task_instance_id, Past.state, Past.end_date, Past.max_tries).where(
            Past.task_instance_id.in_(list(_ids(jobs)))
        )
    )
    return {str(row.task_instance_id): row for row in rows}


def _ids(jobs: Sequence[tuple[JobStatus, Origin]]) -> Iterator[UUID]:
    for status, _ in jobs:
        try:
            yield UUID(status.owner or "")
        except ValueError:
            continue


def _key(origin: Origin) -> _Task:
    return origin.dag_id, origin.run_id, origin.task_id, origin.map_index


def _text(state: object) -> str | None:
    return None if state is None else str(state)


def _seconds(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()
