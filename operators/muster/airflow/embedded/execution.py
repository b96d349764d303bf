"""Runs tasks in this process through Airflow's in-process supervisor, as ``dag.test()`` does.

The process is a fork (see :mod:`~muster.airflow.embedded.task_process`): it opens the database anew, and it
alone serves Airflow's API to its tasks, which the process that forks has only built. Which of the tasks that are ready may
start follows from Airflow's limits, which elsewhere its scheduler applies.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any

from muster.airflow.attempts.watcher import LineListener, Watcher, watching
from muster.airflow.embedded.load import arguments_of, plain
from muster.airflow.embedded.preload import build
from muster.airflow.embedded.task_process import TaskOutcome
from muster.airflow.upstream import internals

if TYPE_CHECKING:
    from uuid import UUID

    from airflow.sdk import DAG
    from sqlalchemy.orm import Session

    from muster.airflow.upstream.internals import DagCallbackRequest, TaskInstance

_NAP_SECONDS = 0.05
_STDERR = 2
_STOPPING = "stopping: the running jobs are ended; Ctrl-C again leaves at once and lets them run"


class Interruption:
    """Whether SIGINT or SIGTERM has asked the run to end."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._asked = False

    def __bool__(self) -> bool:
        return self._asked

    def set(self) -> None:
        """Ask the run to end."""
        self._asked = True

    def sleep(self, seconds: float) -> None:
        """Sleep, but only until the run is asked to end."""
        deadline = time.monotonic() + seconds
        while not self._asked and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, _NAP_SECONDS))  # a lock could be held when the signal comes

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Handle both signals in the block."""
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        signal.signal(signal.SIGTERM, self._terminate)
        signal.signal(signal.SIGINT, self._interrupt)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        if self._asked:
            with suppress(RuntimeError):  # as below
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(130)
        self._asked = True
        try:
            self._say(_STOPPING)
        except RuntimeError:
            # The signal came while a line was written, and a buffered stream refuses a second writer.
            os.write(_STDERR, f"{_STOPPING}\n".encode())

    def _terminate(self, _number: int, _frame: FrameType | None) -> None:
        self._asked = True


def prepare_forks(session: Session) -> None:
    """Build what every task needs, and close the database: no connection of SQLite outlives a fork.

    https://www.sqlite.org/howtocorrupt.html#_carrying_an_open_database_file_across_a_fork_
    """
    build()
    session.commit()
    assert internals.settings.engine is not None
    internals.settings.engine.dispose()


class Execution:
    """The work of a process for tasks.

    :param tasks: as their author wrote them, by id.
    :param interruption: set when this process is asked to end.
    """

    def __init__(self, tasks: Mapping[str, Any], interruption: Interruption) -> None:
        self._tasks = tasks
        self._interruption = interruption

    def __call__(self, ti_id: UUID, listener: LineListener) -> TaskOutcome:
        """Run a task instance that is scheduled, and say how it ended; Airflow's database has its state."""
        from muster.airflow.upstream.internals import TaskInstance, _run_task, create_session

        with create_session() as session:
            session.expire_all()  # in a fork, what the run's process had read
            ti = session.get_one(TaskInstance, ti_id)
        task = self._tasks[ti.task_id]
        skips: list[str] = []
        by = Watcher(listener=listener, stopping=self._interruption.__bool__, skipped=skips.append)
        with watching(by):
            result = _run_task(ti=ti, task=task, run_triggerer=True)
        if result is None:
            return TaskOutcome()
        given = arguments_of(task, result.ti.task) if ti.map_index >= 0 else {}
        skipped = "".join(skips[-1:])
        return TaskOutcome(
            arguments={name: plain(value) for name, value in given.items()},
            message=skipped if result.error is None else str(result.error) or type(result.error).__name__,
        )


def fail_lost(ti: TaskInstance, task: Any, message: str, session: Session) -> None:
    """Have Airflow fail or retry a task instance whose process ended without a word; one that has ended stays.

    :param task: as the scheduler knows it.
    """
    from airflow.utils.state import State, TaskInstanceState

    if ti.state in State.finished or ti.state == TaskInstanceState.UP_FOR_RETRY:
        return
    ti.task = task
    ti.handle_failure(message, session=session)
    session.commit()


def call_back(dag: DAG, request: DagCallbackRequest, warn: Callable[[str], None]) -> None:
    """Call ``on_success_callback`` or ``on_failure_callback`` of a Dag whose run has ended, as Airflow's Dag processor does.

    :param dag: as its author wrote it: the scheduler's Dag has no functions.
    :param warn: told of a callback that fails; the others are called all the same, and the run's state stays.
    """
    word = "on_failure_callback" if request.is_failure_callback else "on_success_callback"
    callbacks: Any = getattr(dag, word) or ()
    for callback in callbacks if isinstance(callbacks, Sequence) else (callbacks,):
        try:
            callback(_context(dag, request))
        except Exception as error:  # whatever its author wrote
            name = getattr(callback, "__name__", repr(callback))
            warn(f"{word} {name} of Dag {dag.dag_id} failed: {type(error).__name__}: {error}")


def _context(dag: DAG, request: DagCallbackRequest) -> dict[str, Any]:
    from muster.airflow.upstream.internals import RuntimeTaskInstance, TIRunContext

    known = request.context_from_server
    if known is None or known.last_ti is None:
        return {"dag": dag, "run_id": request.run_id, "reason": request.msg}
    task = dag.get_task(known.last_ti.task_id)
    ti = RuntimeTaskInstance.model_construct(
        **known.last_ti.model_dump(exclude_unset=True),
        task=task,
        _ti_context_from_server=TIRunContext.model_construct(dag_run=known.dag_run, max_tries=task.retries),
    )
    return {**ti.get_template_context(), "reason": request.msg}


UNLIMITED = -1


@dataclass(frozen=True, kw_only=True)
class Turn:
    """A task instance that is ready or runs.

    :param weight: Airflow's priority; the greater goes first.
    :param place: where its task stands in the order of the Dag.
    :param ti_id: Airflow's id of the instance, or of this try.
    :param at_once: how many instances of its task may run; None: any number.
    """

    task_id: str
    map_index: int = -1
    weight: int = 1
    place: int = 0
    pool: str = ""
    slots: int = 1
    at_once: int | None = None
    ti_id: Any = None
    try_number: int = 1

    @property
    def key(self) -> tuple[str, int]:
        """Its task's id and its map index."""
        return self.task_id, self.map_index


@dataclass(frozen=True, kw_only=True)
class RunLimits:
    """What a run may have running at once.

    :param tasks: how many.
    :param pools: slots by pool; a pool that is not listed has no limit.
    """

    tasks: int
    pools: Mapping[str, int]

    def allow(self, turn: Turn, running: Collection[Turn]) -> bool:
        """Whether a task may start beside those that run."""
        if len(running) >= self.tasks:
            return False
        same = sum(each.task_id == turn.task_id for each in running)
        if turn.at_once is not None and same >= turn.at_once:
            return False
        return self._has_room(turn, [each for each in running if each.pool == turn.pool])

    def _has_room(self, turn: Turn, beside: Sequence[Turn]) -> bool:
        slots = self.pools.get(turn.pool, UNLIMITED)
        taken = sum(each.slots for each in beside)
        return slots == UNLIMITED or not beside or taken + turn.slots <= slots


def whose_turn(ready: Iterable[Turn], running: Iterable[Turn], limits: RunLimits) -> list[Turn]:
    """Return those that may start now, the first one first; one that must wait holds no other back."""
    chosen: list[Turn] = []
    busy = list(running)
    for turn in sorted(ready, key=lambda turn: (-turn.weight, turn.place, turn.map_index)):
        if limits.allow(turn, busy):
            busy.append(turn)
            chosen.append(turn)
    return chosen
