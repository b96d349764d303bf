"""Runs the tasks of one Dag run, one after the other in this process, as Airflow's ``dag.test()`` does.

What may run next, what a failure stops, when a retry is due: all that is Airflow's own
``DagRun.update_state``, and each task runs through Airflow's own in-process supervisor.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from itertools import groupby
from typing import TYPE_CHECKING

from muster.airflow.embedded.interruption import Interruption
from muster.airflow.embedded.load import Loaded
from muster.airflow.embedded.result import Listener

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy.orm import Session

_LONGEST_WAIT_SECONDS = 1.0


class Loop:
    """One Dag run going on."""

    def __init__(
        self, loaded: Loaded, run: DagRun, session: Session, listener: Listener, interruption: Interruption
    ) -> None:
        self._loaded = loaded
        self._run = run
        self._session = session
        self._listener = listener
        self._interruption = interruption
        self._failures: dict[tuple[str, int], str] = {}
        self._seconds: dict[tuple[str, int], float] = {}

    def failure(self, task_id: str) -> str:
        """Why a task that failed did; of a mapped one, why the first of its instances did that failed."""
        found = sorted((index, text) for (name, index), text in self._failures.items() if name == task_id)
        return found[0][1] if found else ""

    def seconds(self, task_id: str) -> float | None:
        """How long a task that ran here took, all of its instances together."""
        found = [took for (name, _), took in self._seconds.items() if name == task_id]
        return sum(found) if found else None

    def run(self, ended: Callable[[str], None]) -> None:
        """Go on until the run has ended or somebody asked it to.

        :param ended: is called with the name of each task that has come to its end here; once for
            the instances of a mapped task that ran one after the other.
        """
        from airflow.utils.state import DagRunState

        while self._run.state == DagRunState.RUNNING and not self._interruption:
            ready = self._ready()
            for task_id, instances in groupby(ready, key=lambda ti: ti.task_id):
                if self._interruption:
                    break
                self._execute_all(instances)
                ended(task_id)
            if not ready and self._run.state == DagRunState.RUNNING:
                self._interruption.sleep(self._until_next())

    def _ready(self) -> Sequence[TaskInstance]:
        """Ask Airflow what may run now, and mark it scheduled."""
        from airflow.sdk import timezone
        from airflow.utils.state import TaskInstanceState

        self._session.expire_all()
        self._run.dag = self._loaded.scheduled
        schedulable, _ = self._run.update_state(session=self._session)
        for ti in schedulable:
            if ti.state != TaskInstanceState.UP_FOR_RESCHEDULE:
                ti.try_number += 1
            ti.state = TaskInstanceState.SCHEDULED
            ti.scheduled_dttm = timezone.utcnow()
        self._session.commit()
        tasks = self._run.get_task_instances(session=self._session)
        order = {name: place for place, name in enumerate(self._loaded.order)}
        ready = [ti for ti in tasks if ti.state == TaskInstanceState.SCHEDULED]
        return sorted(ready, key=lambda ti: (order[ti.task_id], ti.map_index))

    def _execute_all(self, instances: Iterable[TaskInstance]) -> None:
        for ti in instances:
            if self._interruption:
                break
            self._execute(ti)

    def _execute(self, ti: TaskInstance) -> None:
        from airflow.sdk.definitions.dag import _run_task

        from muster.airflow.operators.base import MusterOperator

        task = self._loaded.dag.task_dict[ti.task_id]
        self._listener.task_started(ti.task_id, ti.try_number)
        began = time.monotonic()
        result = _run_task(ti=ti, task=task, run_triggerer=True)
        self._interruption.listen()
        instance = (ti.task_id, ti.map_index)
        self._seconds[instance] = time.monotonic() - began
        self._failures.pop(instance, None)
        if result is not None and result.error is not None:
            self._failures[instance] = str(result.error) or type(result.error).__name__
        if result is not None and isinstance(result.ti.task, MusterOperator) and result.ti.task.wait.stopped:
            self._interruption.set()

    def _until_next(self) -> float:
        """Seconds until a retry is due, or a while for what Airflow alone knows to be waiting."""
        from airflow.sdk import timezone
        from airflow.utils.state import TaskInstanceState

        due = []
        for ti in self._run.get_task_instances(session=self._session):
            if ti.state == TaskInstanceState.UP_FOR_RETRY:
                ti.task = self._loaded.scheduled.get_task(ti.task_id)
                retry_at: datetime = ti.next_retry_datetime()  # type: ignore[no-untyped-call]
                due.append((retry_at - timezone.utcnow()).total_seconds())
        return max(min([*due, _LONGEST_WAIT_SECONDS]), 0.01)
