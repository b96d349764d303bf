"""How the tries that own jobs stand, read from Airflow's database; for processes that may read it, as the triggerer.

The tables are Airflow's own, and differ between its releases: what muster knows of them stands here.

It also has Airflow remember clears that it forgets. A task that is cleared while it runs is `restarting` until its
process has ended; Airflow then raises its ``max_tries``, which tells the next try to begin anew. Where the process, its
worker or the scheduler died instead, Airflow (3.3.2, 3.4.0b2) resets the task and raises nothing, and the next try would
look like one that goes on with the job of a lost try.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

from muster.airflow.attempts.task_state import GONE
from muster.airflow.upstream import internals
from muster.core.errors import BackendError
from muster.core.origin import Origin
from muster.core.status import JobStatus

if TYPE_CHECKING:
    from datetime import datetime

    from sqlalchemy.orm import Session

_AT_ONCE = 200  # jobs that one query is about

_FORGETS = (None, "up_for_retry", "scheduled", "queued")

_Task = tuple[str, str, str, int]


@dataclass(frozen=True, kw_only=True)
class Standing:
    """How the task of a job stands, and the try that owns the job.

    :param state: of the task instance now; :data:`~muster.airflow.attempts.task_state.GONE` where there is none.
    :param run_failed: whether its Dag run has failed.
    :param cleared: whether the task was cleared since that try began.
    :param outcome: how that try ended, or None; `ended` when, in seconds since the epoch.
    :param stale: whether Airflow no longer has the Dag, and goes on with none of its runs.
    """

    state: str | None
    run_failed: bool = False
    stale: bool = False
    cleared: bool = False
    outcome: str | None = None
    ended: float | None = None


def standings(jobs: Sequence[tuple[JobStatus, Origin]]) -> dict[str, Standing]:
    """Return how the task of each job stands, by the job's id. :raises BackendError: the database does not answer."""
    from sqlalchemy.exc import DBAPIError

    found: dict[str, Standing] = {}
    for first in range(0, len(jobs), _AT_ONCE):
        some = jobs[first : first + _AT_ONCE]
        try:
            with internals.create_session() as session:
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
    failed = _text(task.run_state) == "failed"
    now = Standing(state=_text(task.state), run_failed=failed, stale=bool(task.stale))
    if str(task.id) == owner:
        return replace(now, outcome=now.state, ended=_seconds(task.end_date))
    if before is None:  # Airflow keeps nothing of a try that it never recorded
        return now
    cleared = task.max_tries != before.max_tries
    return replace(now, cleared=cleared, outcome=_text(before.state), ended=_seconds(before.end_date))


def _tasks(session: Session, jobs: Sequence[tuple[JobStatus, Origin]]) -> Mapping[_Task, Any]:
    """The task instances as they are now."""
    from sqlalchemy import select

    from muster.airflow.upstream.internals import DagModel, DagRun, TaskInstance as Task

    wanted = {_key(origin) for _, origin in jobs}
    dags, runs, tasks, indices = (set(part) for part in zip(*wanted, strict=True))
    rows = session.execute(
        select(
            Task.id,
            Task.dag_id,
            Task.run_id,
            Task.task_id,
            Task.map_index.label("map_index"),  # Airflow 3.4 has it under two names
            Task.state,
            Task.end_date,
            Task.max_tries,
            DagRun.state.label("run_state"),
            DagModel.is_stale.label("stale"),
        )
        .join(DagRun, (DagRun.dag_id == Task.dag_id) & (DagRun.run_id == Task.run_id))
        .outerjoin(DagModel, DagModel.dag_id == Task.dag_id)
        .where(
            Task.run_id.in_(runs), Task.dag_id.in_(dags), Task.task_id.in_(tasks), Task.map_index.in_(indices)
        )
    )
    return {(row.dag_id, row.run_id, row.task_id, row.map_index): row for row in rows}


def _tries(session: Session, jobs: Sequence[tuple[JobStatus, Origin]]) -> Mapping[str, Any]:
    """What is kept of tries that are over, by their ids."""
    from sqlalchemy import select

    past: Any = internals.TaskInstance
    if keeps_tries_as_rows():
        own_id = past.id
    else:
        from muster.airflow.upstream.internals import TaskInstanceHistory as past  # noqa: N813 - it stands for either

        own_id = past.task_instance_id
    rows = session.execute(
        select(own_id.label("own_id"), past.state, past.end_date, past.max_tries)
        .where(own_id.in_(list(_ids(jobs))))
        .execution_options(include_all_attempts=True)
    )
    return {str(row.own_id): row for row in rows}


def keeps_tries_as_rows() -> bool:
    """Whether each try of a task is a row of its own, as in Airflow 3.4; queries then leave out those that are over."""
    return hasattr(internals.TaskInstance, "working_set")


def index_of(kept: Any) -> Any:
    """Return the map index of a row of ``task_state_store``, or of the table itself its column: Airflow 3.4 renamed it."""
    return kept.region_index if hasattr(kept, "region_index") else kept.map_index


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


def remember_clears() -> None:
    """Have ``max_tries`` raised whenever this process takes a task of muster's out of `restarting` for another try.

    Idempotent. Other tasks stay as Airflow has them.
    """
    from sqlalchemy import event

    if not event.contains(internals.TaskInstance.state, "set", _raise_max_tries):
        event.listen(internals.TaskInstance.state, "set", _raise_max_tries)


def _raise_max_tries(task: Any, state: Any, before: Any, _initiator: Any) -> None:
    from sqlalchemy import inspect

    if before != "restarting" or state not in _FORGETS:
        return
    if not inspect(task).attrs.max_tries.history.has_changes() and _has_begun_a_job(task):
        task.max_tries += 1


def going_runs() -> set[tuple[str, str]]:
    """Return Dag and id of each run that goes on and has begun something of muster's. :raises BackendError: as above."""
    from sqlalchemy import select

    from muster.airflow.upstream.internals import DagModel, DagRun, TaskStateStoreModel as Kept

    begun = select(Kept.dag_run_id).where(Kept.dag_run_id == DagRun.id, _ours(Kept.key)).exists()
    wanted = (
        select(DagRun.dag_id, DagRun.run_id)
        .join(DagModel, DagModel.dag_id == DagRun.dag_id)
        .where(DagRun.state.in_(("queued", "running")), DagModel.is_stale.is_(False), begun)
    )
    return _pairs(wanted)


def used_versions() -> set[tuple[str, str]]:
    """Return the name of a bundle, and the version, that each run which goes on began with. :raises BackendError: as above."""
    from sqlalchemy import select

    from muster.airflow.upstream.internals import DagModel, DagRun

    return _pairs(
        select(DagModel.bundle_name, DagRun.bundle_version)
        .join(DagModel, DagModel.dag_id == DagRun.dag_id)
        .where(DagRun.state.in_(("queued", "running")), DagRun.bundle_version.is_not(None))
        .distinct()
    )


def _pairs(wanted: Any) -> set[tuple[str, str]]:
    from sqlalchemy.exc import DBAPIError

    try:
        with internals.create_session() as session:
            return {(row[0], row[1]) for row in session.execute(wanted)}
    except DBAPIError as error:
        raise BackendError(f"Airflow's database does not answer: {error.orig}") from error


def _ours(key: Any) -> Any:
    """Whether a key of ``task_state_store`` is one of muster's: no other operator writes down what it begins."""
    from sqlalchemy import or_

    from muster.airflow.attempts.attempt import KEYS
    from muster.airflow.attempts.run import STATE_KEY

    return or_(key == STATE_KEY, key.startswith(f"{STATE_KEY}."), key.in_(KEYS))


def _has_begun_a_job(task: Any) -> bool:
    """Whether a task instance is of muster's: its tries write down what they begin."""
    from sqlalchemy import select
    from sqlalchemy.orm import object_session

    from muster.airflow.upstream.internals import TaskStateStoreModel as Kept

    session = object_session(task)
    if session is None:
        return False
    with session.no_autoflush:  # it is in the middle of being changed
        found = session.scalar(
            select(Kept.key)
            .where(
                Kept.dag_id == task.dag_id,
                Kept.run_id == task.run_id,
                Kept.task_id == task.task_id,
                _ours(Kept.key),
            )
            .limit(1)
        )
    return found is not None
