"""Runs the tasks of one Dag run: those that may run side by side do, in processes of their own.

Airflow's own ``DagRun.update_state`` decides what may run next, what a failure stops, and when a retry is
due, and each task runs through Airflow's own in-process supervisor, as in ``dag.test()``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from muster.airflow.attempts.watcher import called
from muster.airflow.embedded.execution import Execution, fail_lost, prepare_forks
from muster.airflow.embedded.interruption import Interruption
from muster.airflow.embedded.load import Loaded
from muster.airflow.embedded.result import Listener
from muster.airflow.embedded.task_process import Outcome, TaskProcess, hear
from muster.airflow.embedded.turns import Limits, Turn, whose_turn

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy.orm import Session

_LONGEST_PAUSE_SECONDS = 1.0
_NAP_SECONDS = 0.1  # how soon a stop is heard, and how often a screen is drawn

Key = tuple[str, int]


class Loop:
    """One running Dag run.

    :param scope: the tasks that may run; None: all.
    :param serial: run one task after the other, each with this process's stdout and stderr.
    :param beat: called about ten times a second while tasks run.
    :param on_lost: called with the task and index of an instance whose process was lost, once that is noted.
    """

    def __init__(
        self,
        loaded: Loaded,
        run: DagRun,
        session: Session,
        listener: Listener,
        interruption: Interruption,
        scope: Collection[str] | None = None,
        *,
        serial: bool = False,
        beat: Callable[[], None] = lambda: None,
        on_lost: Callable[[str, int], None] = lambda *_: None,
    ) -> None:
        self._loaded = loaded
        self._run = run
        self._session = session
        self._listener = listener
        self._interruption = interruption
        self._scope = scope
        self._serial = serial
        self._beat = beat
        self._on_lost = on_lost
        self._limits = Limits(tasks=1 if serial else loaded.dag.max_active_tasks, pools=_pools(session))
        self._places = {name: place for place, name in enumerate(loaded.order)}
        self._running: dict[Key, tuple[Turn, TaskProcess]] = {}
        self._idle: list[TaskProcess] = []
        self._waiting: set[Key] = set()
        self._messages: dict[Key, str] = {}
        self._began: dict[Key, float] = {}
        self._ended: dict[Key, float] = {}
        self._arguments: dict[Key, Mapping[str, Any]] = {}

    def seconds(self, task_id: str) -> float | None:
        """Return how long a task took here, from the start of its first instance to the end of its last."""
        ended = {key: end for key, end in self._ended.items() if key[0] == task_id}
        return max(ended.values()) - min(self._began[key] for key in ended) if ended else None

    def arguments(self, task_id: str, map_index: int) -> Mapping[str, Any]:
        """Return the arguments that distinguish an instance that ran here; empty if it did not run here."""
        return self._arguments.get((task_id, map_index), {})

    def of_instance(self, task_id: str, map_index: int) -> tuple[float | None, str]:
        """Return how long an instance took here, and why it failed or skipped itself, if it did; -1 is a task that is not mapped."""
        key = (task_id, map_index)
        took = self._ended[key] - self._began[key] if key in self._ended else None
        return took, self._messages.get(key, "")

    def run(self, ended: Callable[[str], None], instance_ended: Callable[[str, int], None]) -> None:
        """Run until the run has ended or is asked to end; no task runs any more then.

        :param ended: called with the name of each task that has ended here; once for
            the instances of a mapped task that ran side by side.
        :param instance_ended: called with the task and index of each such instance before.
        """
        try:
            while self._goes_on:
                self._start_all(self._ready())
                if self._running:
                    self._hear(ended, instance_ended)
                elif not self._waiting and self._goes_on:
                    self._interruption.sleep(min(self._until_due(), _LONGEST_PAUSE_SECONDS))
            self._waiting.clear()
            while self._running:
                for _, process in self._running.values():
                    process.stop()
                self._hear(ended, instance_ended)
        finally:
            for process in (*self._idle, *(process for _, process in self._running.values())):
                process.leave()

    @property
    def left_waiting(self) -> bool:
        """Whether the tasks that may run have ended, and others, outside the scope, wait."""
        from airflow.utils.state import DagRunState, State

        if self._scope is None or self._run.state != DagRunState.RUNNING:
            return False
        tasks = self._run.get_task_instances(session=self._session)
        return all(ti.state in State.finished for ti in tasks if ti.task_id in self._scope)

    @property
    def _goes_on(self) -> bool:
        from airflow.utils.state import DagRunState

        return self._run.state == DagRunState.RUNNING and not self._interruption and not self.left_waiting

    def _ready(self) -> Sequence[TaskInstance]:
        """Ask Airflow what may run now, and mark it scheduled."""
        from airflow.sdk import timezone
        from airflow.utils.state import TaskInstanceState

        from muster.airflow.attempts.database import keeps_tries_as_rows

        self._session.expire_all()
        self._run.dag = self._loaded.scheduled
        schedulable, _ = self._run.update_state(session=self._session)
        for ti in schedulable:
            if self._scope is not None and ti.task_id not in self._scope:
                continue
            if keeps_tries_as_rows():  # the row of a further try has its number
                ti.try_number = max(1, ti.try_number)
            elif ti.state != TaskInstanceState.UP_FOR_RESCHEDULE:
                ti.try_number += 1
            ti.state = TaskInstanceState.SCHEDULED
            ti.scheduled_dttm = timezone.utcnow()
        self._session.commit()
        tasks = self._run.get_task_instances(session=self._session)
        return [
            ti for ti in tasks if ti.state == TaskInstanceState.SCHEDULED and _key(ti) not in self._running
        ]

    def _start_all(self, ready: Sequence[TaskInstance]) -> None:
        """Start those whose turn it is; the others wait."""
        found = {_key(ti): ti for ti in ready}
        self._waiting = set(found)
        turns = whose_turn(map(self._turn, ready), (turn for turn, _ in self._running.values()), self._limits)
        if len(turns) > len(self._idle):
            prepare_forks(self._session)
        for turn in turns:
            if self._interruption:
                break
            self._start(turn, found[turn.key])
            self._waiting.discard(turn.key)

    def _start(self, turn: Turn, ti: TaskInstance) -> None:
        from muster.airflow.embedded.instances import known_arguments, runs_a_job

        task = self._loaded.dag.task_dict[ti.task_id]
        label = called(ti.task_id, ti.map_index, known_arguments(task, ti.map_index))
        self._listener.task_started(label, ti.try_number, runs_a_job=runs_a_job(task))
        self._began[turn.key] = time.monotonic()
        self._ended.pop(turn.key, None)
        process = self._idle.pop() if self._idle else self._fork()
        process.start(ti.id, label=label)
        self._running[turn.key] = (turn, process)

    def _fork(self) -> TaskProcess:
        work = Execution(self._loaded.dag.task_dict, self._interruption)
        return TaskProcess(work, captured=not self._serial, stop=self._interruption.set)

    def _turn(self, ti: TaskInstance) -> Turn:
        task = self._loaded.dag.task_dict[ti.task_id]
        limits = [task.max_active_tis_per_dag, task.max_active_tis_per_dagrun]
        return Turn(
            task_id=ti.task_id,
            map_index=ti.map_index,
            weight=ti.priority_weight or 0,
            place=self._places[ti.task_id],
            pool=ti.pool,
            slots=ti.pool_slots,
            at_once=min((limit for limit in limits if limit is not None), default=None),
        )

    def _hear(self, ended: Callable[[str], None], instance_ended: Callable[[str, int], None]) -> None:
        """Pass on what the running tasks say until one has ended, a retry is due or the run is asked to end."""
        asked, until = bool(self._interruption), time.monotonic() + self._until_due()
        gone: list[TaskProcess] = []
        while not gone and bool(self._interruption) is asked and time.monotonic() < until:
            gone = hear([process for _, process in self._running.values()], self._listener, _NAP_SECONDS)
            self._listener.beat()
            self._beat()
        self._session.expire_all()  # the tasks' own processes have written to the database
        for key in [key for key, (_, process) in self._running.items() if process in gone]:
            self._end(key)
            if key[1] >= 0:
                instance_ended(*key)
            if key[0] not in {name for name, _ in (*self._running, *self._waiting)}:
                ended(key[0])

    def _end(self, key: Key) -> None:
        """Note how an instance ended."""
        _, process = self._running.pop(key)
        self._ended[key] = time.monotonic()
        outcome = process.outcome or self._lost(key, process)
        if process.alive:
            self._idle.append(process)
        self._messages.pop(key, None)
        if outcome.message:
            self._messages[key] = outcome.message
        if outcome.arguments:
            self._arguments[key] = outcome.arguments

    def _lost(self, key: Key, process: TaskProcess) -> Outcome:
        """Fail a task whose process ended before it could tell how; its job goes on if a try follows."""
        message = f"its process {process.how}"
        ti = next(ti for ti in self._run.get_task_instances(session=self._session) if _key(ti) == key)
        fail_lost(ti, self._loaded.scheduled.get_task(ti.task_id), message, self._session)
        self._on_lost(*key)
        return Outcome(message=message)

    def _until_due(self) -> float:
        """Return the seconds until a retry or another look of a sensor is due; endless if none is."""
        from airflow.sdk import timezone
        from airflow.utils.state import TaskInstanceState

        due = [math.inf]
        for ti in self._run.get_task_instances(session=self._session):
            if ti.state == TaskInstanceState.UP_FOR_RETRY:
                ti.task = self._loaded.scheduled.get_task(ti.task_id)
                retry_at: datetime = ti.next_retry_datetime()  # type: ignore[no-untyped-call]
                due.append((retry_at - timezone.utcnow()).total_seconds())
            elif ti.state == TaskInstanceState.UP_FOR_RESCHEDULE:
                due.append(_LONGEST_PAUSE_SECONDS)
        return max(min(due), 0.01)


def _key(ti: TaskInstance) -> Key:
    return ti.task_id, ti.map_index


def _pools(session: Session) -> dict[str, int]:
    from airflow.models.pool import Pool
    from sqlalchemy import select

    return {str(pool.pool): pool.slots for pool in session.scalars(select(Pool))}
