"""Runs the tasks of one Dag run, one after the other in this process, as Airflow's ``dag.test()`` does.

Airflow's own ``DagRun.update_state`` decides what may run next, what a failure stops, and when a retry is
due, and each task runs through Airflow's own in-process supervisor.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from typing import TYPE_CHECKING, Any

from muster.airflow.attempts.watcher import called
from muster.airflow.embedded.interruption import Interruption
from muster.airflow.embedded.load import Loaded
from muster.airflow.embedded.result import Listener

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy.orm import Session

_LONGEST_WAIT_SECONDS = 1.0


class Loop:
    """One running Dag run.

    :param scope: the tasks that may run; None: all.
    """

    def __init__(
        self,
        loaded: Loaded,
        run: DagRun,
        session: Session,
        listener: Listener,
        interruption: Interruption,
        scope: Collection[str] | None = None,
    ) -> None:
        self._loaded = loaded
        self._run = run
        self._session = session
        self._listener = listener
        self._interruption = interruption
        self._scope = scope
        self._failures: dict[tuple[str, int], str] = {}
        self._seconds: dict[tuple[str, int], float] = {}
        self._arguments: dict[tuple[str, int], Mapping[str, Any]] = {}

    def failure(self, task_id: str) -> str:
        """Return why a task failed; of a mapped one, why its first failed instance did."""
        found = sorted((index, text) for (name, index), text in self._failures.items() if name == task_id)
        return found[0][1] if found else ""

    def seconds(self, task_id: str) -> float | None:
        """Return how long a task took here, all instances together."""
        found = [took for (name, _), took in self._seconds.items() if name == task_id]
        return sum(found) if found else None

    def arguments(self, task_id: str, map_index: int) -> Mapping[str, Any]:
        """Return the arguments that distinguish an instance that ran here; empty if it did not run here."""
        return self._arguments.get((task_id, map_index), {})

    def of_instance(self, task_id: str, map_index: int) -> tuple[float | None, str]:
        """Return how long an instance took here, and why it failed, if it did."""
        return self._seconds.get((task_id, map_index)), self._failures.get((task_id, map_index), "")

    def run(self, ended: Callable[[str], None], instance_ended: Callable[[str, int], None]) -> None:
        """Run until the run has ended or is asked to end.

        :param ended: called with the name of each task that has ended here; once for
            the instances of a mapped task that ran one after the other.
        :param instance_ended: called with the task and index of each such instance before.
        """
        from airflow.utils.state import DagRunState

        while self._run.state == DagRunState.RUNNING and not self._interruption and not self.left_waiting:
            ready = self._ready()
            for task_id, instances in groupby(ready, key=lambda ti: ti.task_id):
                if self._interruption:
                    break
                self._execute_all(instances, instance_ended)
                ended(task_id)
            if not ready and self._run.state == DagRunState.RUNNING and not self.left_waiting:
                self._interruption.sleep(self._until_next())

    @property
    def left_waiting(self) -> bool:
        """Whether the tasks that may run have ended, and others, outside the scope, wait."""
        from airflow.utils.state import DagRunState, State

        if self._scope is None or self._run.state != DagRunState.RUNNING:
            return False
        tasks = self._run.get_task_instances(session=self._session)
        return all(ti.state in State.finished for ti in tasks if ti.task_id in self._scope)

    def _ready(self) -> Sequence[TaskInstance]:
        """Ask Airflow what may run now, and mark it scheduled."""
        from airflow.sdk import timezone
        from airflow.utils.state import TaskInstanceState

        self._session.expire_all()
        self._run.dag = self._loaded.scheduled
        schedulable, _ = self._run.update_state(session=self._session)
        for ti in schedulable:
            if self._scope is not None and ti.task_id not in self._scope:
                continue
            if ti.state != TaskInstanceState.UP_FOR_RESCHEDULE:
                ti.try_number += 1
            ti.state = TaskInstanceState.SCHEDULED
            ti.scheduled_dttm = timezone.utcnow()
        self._session.commit()
        tasks = self._run.get_task_instances(session=self._session)
        order = {name: place for place, name in enumerate(self._loaded.order)}
        ready = [ti for ti in tasks if ti.state == TaskInstanceState.SCHEDULED]
        return sorted(ready, key=lambda ti: (order[ti.task_id], ti.map_index))

    def _execute_all(
        self, instances: Iterable[TaskInstance], instance_ended: Callable[[str, int], None]
    ) -> None:
        for ti in instances:
            if self._interruption:
                break
            self._execute(ti)
            if ti.map_index >= 0:
                instance_ended(ti.task_id, ti.map_index)

    def _execute(self, ti: TaskInstance) -> None:
        from airflow.sdk.definitions.dag import _run_task

        from muster.airflow.embedded.instances import arguments_of, known_arguments, runs_a_job
        from muster.airflow.operators.base import MusterOperator

        task = self._loaded.dag.task_dict[ti.task_id]
        told = called(ti.task_id, ti.map_index, known_arguments(task, ti.map_index))
        self._listener.task_started(told, ti.try_number, runs_a_job=runs_a_job(task))
        began = time.monotonic()
        result = _run_task(ti=ti, task=task, run_triggerer=True)
        self._interruption.listen()
        instance = (ti.task_id, ti.map_index)
        self._seconds[instance] = time.monotonic() - began
        self._failures.pop(instance, None)
        if result is not None and ti.map_index >= 0:
            self._arguments[instance] = arguments_of(task, result.ti.task)
        if result is not None and result.error is not None:
            self._failures[instance] = str(result.error) or type(result.error).__name__
        if result is not None and isinstance(result.ti.task, MusterOperator) and result.ti.task.wait.stopped:
            self._interruption.set()

    def _until_next(self) -> float:
        """Return the seconds until a retry is due, or a pause if Airflow waits for something else."""
        from airflow.sdk import timezone
        from airflow.utils.state import TaskInstanceState

        due = []
        for ti in self._run.get_task_instances(session=self._session):
            if ti.state == TaskInstanceState.UP_FOR_RETRY:
                ti.task = self._loaded.scheduled.get_task(ti.task_id)
                retry_at: datetime = ti.next_retry_datetime()  # type: ignore[no-untyped-call]
                due.append((retry_at - timezone.utcnow()).total_seconds())
        return max(min([*due, _LONGEST_WAIT_SECONDS]), 0.01)
