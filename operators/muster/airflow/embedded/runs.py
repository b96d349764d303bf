"""Runs of a Dag in the embedded Airflow's database: begun, found again, continued, given up; and the states of one's tasks.

A process holds a run by a lock on a file, which the kernel releases when the process dies. So a run that
is ``running`` with a free lock was left by a crash, and two simultaneous runs never take each other for
dead.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from muster.airflow.attempts.attempt import Attempt
from muster.airflow.attempts.database import index_of
from muster.airflow.embedded.home import EmbeddedHome
from muster.airflow.embedded.load import Loaded
from muster.airflow.upstream import internals
from muster.core.cancelling import STOPPED
from muster.core.errors import NotFound, SpecError
from muster.core.origin import MUSTER_RUN

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from muster.airflow.embedded.home import Asked
    from muster.airflow.upstream.internals import DagRun, TaskInstance, TaskStateStoreModel
    from muster.backends.base import Backend
    from muster.core.status import JobStatus

NONE = "none"
FINISHED = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})


class Runs:
    """The runs of one Dag that ``muster run`` began."""

    def __init__(self, loaded: Loaded, home: EmbeddedHome, session: Session) -> None:
        self._loaded = loaded
        self._home = home
        self._session = session

    def begin(self, run_id: str, conf: Mapping[str, Any]) -> DagRun:
        """Enter a new run, state running."""
        from airflow.utils.state import DagRunState

        from muster.airflow.upstream.internals import (
            DagRunTriggeredByType,
            DagRunType,
            coerce_to_core_timetable,
            timezone,
        )

        now = timezone.coerce_datetime(timezone.utcnow())
        timetable = coerce_to_core_timetable(self._loaded.dag.timetable)
        run = self._loaded.scheduled.create_dagrun(
            run_id=run_id,
            logical_date=now,
            data_interval=timetable.infer_manual_data_interval(run_after=now),
            run_after=now,
            conf=dict(conf),
            run_type=DagRunType.MANUAL,
            triggered_by=DagRunTriggeredByType.CLI,
            triggering_user_name="muster",
            state=DagRunState.RUNNING,
            start_date=now,
            session=self._session,
        )
        self._session.commit()
        self._home.notes.forget(run_id)
        return run

    def unbegun(self) -> Asked | None:
        """Return the last requested run if it has not begun, since its process died before."""
        runs = {run.run_id for run in self._all()}
        left = [asked for asked in self._home.notes.left(self._loaded.dag.dag_id) if asked.run_id not in runs]
        return left[-1] if left and left[-1].run_id > max(runs, default="") else None

    def last(self) -> DagRun:
        """Return the newest run. :raises SpecError: there is none yet."""
        runs = self._all()
        if not runs:
            dag_id = self._loaded.dag.dag_id
            raise SpecError(f"Dag {dag_id} has no run yet that could go on: begin one, `muster run {dag_id}`")
        return runs[-1]

    def reopen(self, run: DagRun, *, again: Collection[str]) -> frozenset[str]:
        """Reopen a run and return the tasks that it keeps.

        Every task that has not succeeded, all that follow it, and `again` run once more. A task
        whose process died keeps its tries, so that it adopts its job; a failed one is cleared.
        """
        from airflow.utils.state import DagRunState, TaskInstanceState

        scheduled = self._loaded.scheduled
        latest = internals.DagVersion.get_latest_version(scheduled.dag_id, session=self._session)
        run.dag = scheduled
        if latest is not None:
            run.created_dag_version_id = latest.id
            run.verify_integrity(dag_version_id=latest.id, session=self._session)
        tasks = [ti for ti in run.get_task_instances(session=self._session) if scheduled.has_task(ti.task_id)]
        names, anew = self._unfinished(tasks, again), self._loaded.followed(again)
        left = [ti for ti in tasks if ti.task_id in names]
        for ti in left:
            if ti.state not in FINISHED:
                # A task whose inputs have changed must not adopt the job that it began: that try has ended.
                ti.state = TaskInstanceState.FAILED if ti.task_id in anew and ti.start_date else None
            if latest is not None:
                ti.dag_version_id = latest.id
        internals.clear_task_instances(
            [ti for ti in left if ti.state in FINISHED or ti.task_id in anew],
            self._session,
            dag_run_state=DagRunState.RUNNING,
            run_on_latest_version=True,
        )
        run.state = DagRunState.RUNNING
        run.end_date = None
        self._session.commit()
        return frozenset(ti.task_id for ti in tasks) - names

    def give_up_lost(self, backend: Backend, *, but: str | None) -> list[str]:
        """Mark runs whose process died as failed, end their jobs, and return their ids.

        :param but: the run that will be resumed.
        """
        from airflow.utils.state import DagRunState

        lost = [
            run
            for run in self._all()
            if run.state == DagRunState.RUNNING
            and run.run_id != but
            and not self._home.notes.held(run.run_id)
        ]
        for run in lost:
            self.fail(run)
            for _, _, job_id in self._attempts(run):
                _cancel(backend, job_id)
        return [run.run_id for run in lost]

    def fail(self, run: DagRun) -> None:
        """Mark a run as failed that no process continues."""
        from airflow.utils.state import DagRunState, TaskInstanceState

        for ti in run.get_task_instances(session=self._session):
            if ti.state in (TaskInstanceState.RUNNING, TaskInstanceState.QUEUED, TaskInstanceState.DEFERRED):
                ti.state = TaskInstanceState.FAILED
                ti.end_date = internals.timezone.utcnow()
        run.state = DagRunState.FAILED
        run.end_date = internals.timezone.utcnow()
        self._session.commit()

    def end_unless_retried(self, run: DagRun, backend: Backend, task_id: str, map_index: int) -> None:
        """End the jobs of an instance whose process was lost, unless another try takes them over."""
        from airflow.utils.state import TaskInstanceState

        ti = run.get_task_instance(task_id, map_index=map_index, session=self._session)
        if ti is not None and ti.state == TaskInstanceState.FAILED:
            for _, _, job_id in self._attempts(run, [task_id], map_index):
                _cancel(backend, job_id)

    def results(
        self, run: DagRun, names: Collection[str], map_index: int | None = None
    ) -> Iterator[tuple[str, int, Any]]:
        """Yield what the instances of muster's tasks returned: the task, its index, the result.

        Tasks of other operators may return anything, under the same names: do not ask for them.

        :param map_index: one instance alone.
        """
        query = internals.XComModel.get_many(
            run_id=run.run_id, key="return_value", dag_ids=run.dag_id, task_ids=names, map_indexes=map_index
        )
        rows: Iterable[Any] = self._session.scalars(query)
        for row in rows:
            yield row.task_id, row.map_index, internals.XComModel.deserialize_value(row)

    def params(self, run: DagRun) -> dict[str, Any]:
        """Return a run's params: the given ones over the Dag's defaults."""
        return {**self._loaded.dag.params.dump(), **(run.conf or {})}

    def _all(self) -> Sequence[DagRun]:
        from sqlalchemy import select

        from muster.airflow.upstream.internals import DagRun

        query = (
            select(DagRun)
            .where(DagRun.dag_id == self._loaded.dag.dag_id, DagRun.run_id.startswith(MUSTER_RUN))
            .order_by(DagRun.id)
        )
        return list(self._session.scalars(query))

    def _unfinished(self, tasks: Sequence[TaskInstance], again: Collection[str]) -> set[str]:
        return self._loaded.followed(
            {ti.task_id for ti in tasks if ti.state not in ("success", "skipped")} | set(again)
        )

    def pass_over_failures(self, run: DagRun, backend: Backend) -> list[JobStatus]:
        """Clear the tasks of a run whose jobs failed while no run watched them; return these jobs' statuses.

        A try that finds such a job would only report it and end. The caller reports it here instead.
        """
        found = []
        for row, attempt, job_id in self._attempts(run):
            status = _known(backend, job_id)
            if attempt.reported or status is None or not status.state.ended or status.verdict is None:
                continue
            row.value = json.dumps(replace(attempt, reported=True).dump())
            found.append(status)
        self._session.commit()
        return found

    def taken(
        self, run: DagRun, names: Collection[str], map_index: int | None = None
    ) -> Iterator[tuple[str, int]]:
        """Yield the instances of tasks that took what another run had made.

        :param map_index: one instance alone.
        """
        for row, attempt, _ in self._attempts(run, names, map_index):
            if attempt.kept:
                yield row.task_id, index_of(row)

    def _attempts(
        self, run: DagRun, names: Collection[str] | None = None, map_index: int | None = None
    ) -> list[tuple[TaskStateStoreModel, Attempt, str]]:
        """Return the records of a run's tasks, or of some: the row, the attempt and its job."""
        from sqlalchemy import select

        from muster.airflow.attempts.run import STATE_KEY
        from muster.airflow.site import instance
        from muster.airflow.upstream.internals import TaskStateStoreModel

        query = select(TaskStateStoreModel).where(
            TaskStateStoreModel.dag_run_id == run.id, TaskStateStoreModel.key.startswith(STATE_KEY)
        )
        if names is not None:
            query = query.where(TaskStateStoreModel.task_id.in_(names))
        if map_index is not None:
            query = query.where(index_of(TaskStateStoreModel) == map_index)
        name = instance(self._home.settings)
        attempts = ((row, Attempt.load(json.loads(row.value))) for row in self._session.scalars(query))
        return [
            (row, attempt, attempt.job_id(instance=name, task=f"{run.dag_id}.{row.task_id}"))
            for row, attempt in attempts
            if attempt is not None
        ]


class States:
    """The states of one run's instances; reading some tasks costs one query, however many tasks the Dag has."""

    def __init__(self, run: DagRun, session: Session) -> None:
        self._of_run = (run.dag_id, run.run_id)
        self._session = session
        self._found: dict[str, dict[int, str]] = {}

    def read(self, names: Collection[str] | None = None) -> set[str]:
        """Read the instances of some tasks, or of all, and return the tasks of which one has ended since."""
        from sqlalchemy import select

        from muster.airflow.upstream.internals import TaskInstance as Task

        dag_id, run_id = self._of_run
        query = select(Task.task_id, Task.map_index.label("map_index"), Task.state).where(
            Task.dag_id == dag_id, Task.run_id == run_id
        )
        if names is not None:
            query = query.where(Task.task_id.in_(names))
        found: dict[str, dict[int, str]] = {}
        for name, index, state in self._session.execute(query.order_by(Task.task_id, Task.map_index)):
            found.setdefault(name, {})[index] = str(state or NONE)
        before, self._found = self._found, {**self._found, **found}
        return {
            name
            for name, states in found.items()
            for index, state in states.items()
            if state in FINISHED and before.get(name, {}).get(index) not in FINISHED
        }

    def of(self, name: str) -> str:
        """Return the state of a task; of a mapped one, failed if an instance has, else that of its first without success."""
        states = self.each(name)
        if "failed" in states:
            return "failed"
        return next((state for state in states if state != "success"), "success" if states else NONE)

    def one(self, name: str, map_index: int) -> str:
        """Return the state of an instance; -1 is a task that is not mapped."""
        return self._found.get(name, {}).get(map_index, NONE)

    def each(self, name: str) -> Collection[str]:
        """Return the states of a task's instances."""
        return self._found.get(name, {}).values()

    def instances(self, name: str) -> Mapping[int, str]:
        """Return the state of each instance of a mapped task by index, once Airflow has expanded it."""
        return {index: state for index, state in self._found.get(name, {}).items() if index >= 0}

    def ended(self, names: Collection[str] | None = None) -> bool:
        """Whether all instances of some tasks, or of all, have ended."""
        return all(
            state in FINISHED
            for name in (self._found if names is None else names)
            for state in self.each(name)
        )


def _known(backend: Backend, job_id: str) -> JobStatus | None:
    try:
        return backend.status(job_id)
    except NotFound:
        return None


def _cancel(backend: Backend, job_id: str) -> None:
    status = _known(backend, job_id)
    if status is not None and not status.state.ended:
        backend.cancel(job_id, owner=status.owner, why=STOPPED)
