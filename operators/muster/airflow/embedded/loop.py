"""Runs the tasks of one Dag run: those that may run side by side do, in processes of their own.

Airflow itself decides what may run next, what a failure stops, and when a retry is due, and each task runs through
Airflow's own in-process supervisor, as in ``dag.test()``. Airflow's scheduler looks at all tasks of a run each time. Here
what ends decides what is looked at: the tasks right after it, and those after these that ended by it without running.
All are looked at when the run begins, and when nothing is left to do. So the cost of a run grows with its tasks.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from muster.airflow.attempts.watcher import called
from muster.airflow.embedded.execution import (
    Execution,
    Interruption,
    RunLimits,
    Turn,
    call_back,
    fail_lost,
    prepare_forks,
    whose_turn,
)
from muster.airflow.embedded.load import Loaded, known_arguments, runs_a_job
from muster.airflow.embedded.questions import OpenQuestions
from muster.airflow.embedded.result import Listener
from muster.airflow.embedded.runs import FINISHED, States
from muster.airflow.embedded.task_process import TaskOutcome, TaskProcess, hear
from muster.airflow.upstream import internals

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from muster.airflow.upstream.internals import DagCallbackRequest, DagRun, TaskInstance

_EPOCH = datetime.fromtimestamp(0, UTC)
_LONGEST_PAUSE_SECONDS = 1.0
GRACE_SECONDS = 3.0  # for a plain function that was asked to end; Airflow's own supervisor waits for 5
_NAP_SECONDS = 0.1  # how soon a stop is heard, and how often a screen is drawn

# With these a task waits for the ends of all that it follows, unless one did not succeed.
_AWAIT_ALL = frozenset({
    "all_success", "all_done", "all_done_min_one_success", "all_done_setup_success", "none_failed", "none_skipped",
    "none_failed_min_one_success",
})  # fmt: skip
_BAD = FINISHED - {"success"}

Key = tuple[str, int]


class _Stop(NamedTuple):
    """Why a task was asked to end, and the state that it has then in any case; None: whatever it makes of it."""

    state: str | None = None
    why: str = ""


class Ran(NamedTuple):
    """How an instance ended that ran here; nothing of one that did not.

    :ivar began: in seconds since the epoch. :ivar seconds: how long it took.
    :ivar message: why it failed or skipped itself. :ivar arguments: those that distinguish it.
    :ivar cancelled: it was told to end with the run.
    """

    began: float | None = None
    seconds: float | None = None
    message: str = ""
    arguments: Mapping[str, Any] = MappingProxyType({})
    cancelled: bool = False


class Loop:
    """One running Dag run.

    :param scope: the tasks that may run; None: all.
    :param serial: run one task after the other, each with this process's stdout and stderr.
    :param beat: called about ten times a second while tasks run.
    :param answers: options by the task that asks a person for one.
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
        answers: Mapping[str, str] = MappingProxyType({}),
        on_lost: Callable[[str, int], None] = lambda *_: None,
    ) -> None:
        self.states = States(run, session)
        self._loaded = loaded
        self._run = run
        self._session = session
        self._listener = listener
        self._interruption = interruption
        self._scope = scope
        self._serial = serial
        self._beat = beat
        self._on_lost = on_lost
        self._limits = RunLimits(tasks=1 if serial else loaded.dag.max_active_tasks, pools=_pools(session))
        self._places = {name: place for place, name in enumerate(loaded.order)}
        self._running: dict[Key, tuple[Turn, TaskProcess]] = {}
        self._idle: list[TaskProcess] = []
        self._questions = OpenQuestions(session, listener, answers)
        self._waiting: dict[Key, Turn] = {}
        self._due: dict[Key, float] = {}
        self._stopped: dict[Key, _Stop] = {}
        self._out_of_time = math.inf
        self._late = False
        self._callback: DagCallbackRequest | None = None
        self._began: dict[Key, float] = {}
        self._ran: dict[Key, Ran] = {}

    def seconds(self, task_id: str) -> float | None:
        """Return how long a task took here, from the start of its first instance to the end of its last."""
        found = [(self._began[key], ran.seconds or 0) for key, ran in self._ran.items() if key[0] == task_id]
        return max(map(sum, found)) - min(began for began, _ in found) if found else None

    def ran(self, task_id: str, map_index: int) -> Ran:
        """Return how an instance ended here; -1 is a task that is not mapped."""
        return self._ran.get((task_id, map_index), Ran())

    def state(self, task_id: str, map_index: int) -> str:
        """Return Airflow's state of an instance; ``cancelled`` where it failed for it was told to end with the run."""
        state = self.states.one(task_id, map_index)
        return "cancelled" if state == "failed" and self.ran(task_id, map_index).cancelled else state

    def run(self, ended: Callable[[str], None], instance_ended: Callable[[str, int], None]) -> None:
        """Run until the run has ended or is asked to end; no task runs any more then.

        :param ended: called with the name of each task that has ended here; once for
            the instances of a mapped task that ran side by side.
        :param instance_ended: called with the task and index of each such instance before.
        """
        limit = self._loaded.dag.dagrun_timeout
        self._out_of_time = time.monotonic() + (math.inf if limit is None else limit.total_seconds())
        try:
            self._settle(self._look())
            while self._goes_on:
                self._step(ended, instance_ended)
            self._waiting.clear()
            for key in self._running:
                self._stopped.setdefault(key, _Stop())
            while self._running:
                self._hear(ended, instance_ended)
            if self._late:  # a task that began meanwhile wrote the run back as it had read it
                self._fail()
            if self._callback is not None:
                call_back(self._loaded.dag, self._callback, self._listener.warning)
        finally:
            for process in (*self._idle, *(process for _, process in self._running.values())):
                process.leave()

    def _step(self, ended: Callable[[str], None], instance_ended: Callable[[str, int], None]) -> None:
        """Start what may start, and wait for something to happen."""
        self._beat()
        if time.monotonic() >= self._out_of_time:
            self._end_late()
            return
        if self._questions and (answered := self._questions.answered()) is not None:
            self._waiting[_key(answered)] = self._turn(answered)
        self._start_all()
        if self._running:
            self._settle(self._hear(ended, instance_ended))
        elif self._questions:
            self._interruption.sleep(_NAP_SECONDS)
        elif not self._waiting:
            self._interruption.sleep(min(self._until_due(), _LONGEST_PAUSE_SECONDS))
            self._settle(self._look())

    @property
    def left_waiting(self) -> bool:
        """Whether the tasks that may run have ended, and others, outside the scope, wait."""
        from airflow.utils.state import DagRunState

        return (
            self._scope is not None
            and self._run.state == DagRunState.RUNNING
            and self.states.ended(self._scope)
        )

    @property
    def _goes_on(self) -> bool:
        from airflow.utils.state import DagRunState

        return self._run.state == DagRunState.RUNNING and not self._interruption and not self.left_waiting

    def _settle(self, ended: Collection[str]) -> None:
        """Look at what follows tasks that have ended, and at the whole run where nothing is left to do."""
        scheduled = self._loaded.scheduled
        due = [key for key, at in self._due.items() if at <= time.monotonic()]
        self._look({name for name, _ in due})
        for key in self._due.keys() & due:  # a sensor knows itself when it looks again
            self._due[key] = time.monotonic() + _LONGEST_PAUSE_SECONDS
        while ended:
            after = {name for each in ended for name in scheduled.get_task(each).downstream_task_ids}
            ended = self._look([name for name in after if self._may_begin(name)])
        if not self._running and not self._waiting and self.states.ended():
            self._look()

    def _may_begin(self, name: str) -> bool:
        """Whether Airflow could decide about a task now: most wait for the ends of all that they follow."""
        task = self._loaded.scheduled.get_task(name)
        if self.states.ended([name]) and self.states.each(name):
            return False
        if task.trigger_rule not in _AWAIT_ALL or task.get_closest_mapped_task_group() is not None:
            return True
        before = [state for upstream in task.upstream_task_ids for state in self.states.each(upstream)]
        return FINISHED.issuperset(before) or not _BAD.isdisjoint(before)

    def _look(self, names: Collection[str] | None = None) -> set[str]:
        """Have Airflow decide about some tasks, or about all and the run, and mark scheduled what may run.

        :returns: the tasks of which an instance has ended since, as one that is skipped.
        """
        from airflow.utils.state import TaskInstanceState

        from muster.airflow.attempts.database import keeps_tries_as_rows

        if names is not None and not names:
            return set()
        self._session.expire_all()
        if names is None:
            self._run.dag = self._loaded.scheduled
            schedulable, self._callback = self._run.update_state(
                session=self._session, execute_callbacks=False
            )
        else:
            self._run.dag = self._loaded.around(names)
            schedulable = self._run.task_instance_scheduling_decisions(session=self._session).schedulable_tis
        for ti in schedulable:
            if self._scope is not None and ti.task_id not in self._scope:
                continue
            if keeps_tries_as_rows():  # the row of a further try has its number
                ti.try_number = max(1, ti.try_number)
            elif ti.state != TaskInstanceState.UP_FOR_RESCHEDULE:
                ti.try_number += 1
            ti.state = TaskInstanceState.SCHEDULED
            ti.scheduled_dttm = internals.timezone.utcnow()
            self._due.pop(_key(ti), None)
        self._session.commit()
        found = self._run.get_task_instances(state=[TaskInstanceState.SCHEDULED], session=self._session)
        self._waiting |= {_key(ti): self._turn(ti) for ti in found if _key(ti) not in self._running}
        ended = self.states.read(None if names is None else self._run.dag.task_ids)
        self._run.dag = self._loaded.scheduled
        return ended

    def _start_all(self) -> None:
        """Start those whose turn it is; the others wait."""
        turns = whose_turn(self._waiting.values(), (turn for turn, _ in self._running.values()), self._limits)
        if len(turns) > len(self._idle):
            prepare_forks(self._session)
        for turn in turns:
            if self._interruption:
                break
            self._start(self._waiting.pop(turn.key))

    def _start(self, turn: Turn) -> None:
        task = self._loaded.dag.task_dict[turn.task_id]
        label = called(turn.task_id, turn.map_index, known_arguments(task, turn.map_index))
        self._listener.task_started(label, turn.try_number, runs_a_job=runs_a_job(task))
        self._began[turn.key] = time.monotonic()
        process = self._idle.pop() if self._idle else self._fork()
        process.start(turn.ti_id, label=label)
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
            ti_id=ti.id,
            try_number=ti.try_number,
            weight=ti.priority_weight or 0,
            place=self._places[ti.task_id],
            pool=ti.pool,
            slots=ti.pool_slots,
            at_once=min((limit for limit in limits if limit is not None), default=None),
        )

    def _hear(self, ended: Callable[[str], None], instance_ended: Callable[[str, int], None]) -> set[str]:
        """Pass on what the running tasks say until one has ended, a retry is due or the run is asked to end.

        :returns: the tasks of which an instance has ended for good.
        """
        asked = bool(self._interruption)
        until = time.monotonic() + (_NAP_SECONDS if self._questions else self._until_due())
        gone: list[TaskProcess] = []
        while not gone and bool(self._interruption) is asked and time.monotonic() < until:
            self._stop_asked()
            gone = hear([process for _, process in self._running.values()], self._listener, _NAP_SECONDS)
            self._listener.beat()
            self._beat()
        keys = [key for key, (_, process) in self._running.items() if process in gone]
        self._session.expire_all()  # the tasks' own processes have written to the database
        for key in keys:
            self._end(key)
        names = {name for name, _ in keys}
        over = self.states.read(names) if names else set()
        if self._loaded.dag.fail_fast and any(self.states.one(*key) == "failed" for key in keys):
            over |= self._fail_fast(", ".join(sorted(names)))
        for key in keys:
            self._note_when_due(key)
            if key[1] >= 0:
                instance_ended(*key)
        for name in names.difference(name for name, _ in (*self._running, *self._waiting)):
            ended(name)
        return over

    def _end(self, key: Key) -> None:
        """Note how an instance ended."""
        _, process = self._running.pop(key)
        seconds = time.monotonic() - self._began[key]
        outcome = process.outcome or self._lost(key, process)
        stopped = self._stopped.pop(key, None)
        if stopped and stopped.state:
            self._instance(key).set_state(stopped.state, session=self._session)
            self._session.commit()
            outcome = replace(outcome, message=stopped.why)
        if process.alive:
            self._idle.append(process)
        self._ran[key] = Ran(
            began=time.time() - seconds,
            seconds=seconds,
            message=outcome.message,
            arguments=outcome.arguments or self.ran(*key).arguments,
            cancelled=stopped is not None and not stopped.state,
        )

    def _stop_asked(self) -> None:
        """Ask the tasks to end that were stopped; kill one that hears nothing, as a plain function."""
        for key in self._stopped:
            _, process = self._running[key]
            # muster's own tasks end with their jobs, which have a time of their own to save what they have
            hears = process.has_job or self._loaded.is_musters(key[0])
            if process.stop() > GRACE_SECONDS and not hears:
                why = f"it did not end within {GRACE_SECONDS:.0f} s of being asked to: its process was killed"
                if not self._stopped[key].state:
                    self._stopped[key] = _Stop("failed", why)
                process.kill()

    def _fail_fast(self, failed: str) -> set[str]:
        """Stop what Airflow has failed or skipped since a task failed; return the tasks that have ended by that."""
        over = self.states.read()
        for key in [key for key in self._waiting if self.states.one(*key) in FINISHED]:
            del self._waiting[key]
        for key in self._running:
            if (state := self.states.one(*key)) in FINISHED:
                self._stopped[key] = _Stop(state, f"stopped, since {failed} failed and the Dag has fail_fast")
        return over

    def _end_late(self) -> None:
        """End the run after the Dag's ``dagrun_timeout``, as Airflow's scheduler does: what has not ended is skipped."""
        from airflow.utils.state import TaskInstanceState

        from muster.airflow.attempts.database import keeps_tries_as_rows

        self._late = True
        why = f"the run has taken longer than the Dag's dagrun_timeout, {self._loaded.dag.dagrun_timeout}"
        self._listener.warning(why)
        left = [ti for ti in self._run.get_task_instances(session=self._session) if ti.state not in FINISHED]
        for ti in left:
            if _key(ti) in self._running:
                self._stopped[_key(ti)] = _Stop("skipped", why)
            else:
                ti.state = TaskInstanceState.SKIPPED
        self._fail()
        if self._loaded.scheduled.has_on_failure_callback:
            last = max(left, key=lambda ti: ti.start_date or _EPOCH, default=None)
            more: dict[str, Any] = {"session": self._session} if keeps_tries_as_rows() else {}
            self._callback = self._run.produce_dag_callback(
                dag=self._loaded.scheduled, success=False, relevant_ti=last, reason="timed_out", **more
            )

    def _fail(self) -> None:
        from airflow.utils.state import DagRunState

        self._run.set_state(DagRunState.FAILED)
        self._session.commit()

    def _lost(self, key: Key, process: TaskProcess) -> TaskOutcome:
        """Fail a task whose process ended before it could tell how; its job goes on if a try follows."""
        message = f"its process {process.how}"
        ti = self._instance(key)
        fail_lost(ti, self._loaded.scheduled.get_task(ti.task_id), message, self._session)
        self._on_lost(*key)
        return TaskOutcome(message=message)

    def _note_when_due(self, key: Key) -> None:
        """Note when another try, or another look of a sensor, is due, if one is."""
        from muster.airflow.upstream.internals import timezone

        state = self.states.one(*key)
        if state == "up_for_retry":
            ti = self._instance(key)
            ti.task = self._loaded.scheduled.get_task(ti.task_id)
            retry_at: datetime = ti.next_retry_datetime()  # type: ignore[no-untyped-call]
            self._due[key] = time.monotonic() + max((retry_at - timezone.utcnow()).total_seconds(), 0.01)
        elif state == "awaiting_input":
            self._questions.add(self._instance(key))
        elif state == "up_for_reschedule":
            self._due[key] = time.monotonic() + _LONGEST_PAUSE_SECONDS

    def _instance(self, key: Key) -> TaskInstance:
        name, index = key
        ti = self._run.get_task_instance(name, map_index=index, session=self._session)
        assert ti is not None, "it has run"
        return ti

    def _until_due(self) -> float:
        """Return the seconds until a retry, another look of a sensor or the end of the run's time is due; endless if none is."""
        return max(min(self._out_of_time, *self._due.values(), math.inf) - time.monotonic(), 0.01)


def _key(ti: TaskInstance) -> Key:
    return ti.task_id, ti.map_index


def _pools(session: Session) -> dict[str, int]:
    from sqlalchemy import select

    return {str(pool.pool): pool.slots for pool in session.scalars(select(internals.Pool))}
