"""Runs tasks in this process through Airflow's in-process supervisor, as ``dag.test()`` does.

The process is a fork (see :mod:`~muster.airflow.embedded.task_process`): it opens the database anew, and it
alone serves Airflow's API to its tasks, which the process that forks has only built.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from muster.airflow.attempts.watcher import LineListener, Watcher, watching
from muster.airflow.embedded.api import build
from muster.airflow.embedded.instances import arguments_of, plain
from muster.airflow.embedded.interruption import Interruption
from muster.airflow.embedded.task_process import TaskOutcome

if TYPE_CHECKING:
    from uuid import UUID

    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy.orm import Session


def prepare_forks(session: Session) -> None:
    """Build what every task needs, and close the database: no connection of SQLite outlives a fork.

    https://www.sqlite.org/howtocorrupt.html#_carrying_an_open_database_file_across_a_fork_
    """
    from airflow import settings

    build()
    session.commit()
    assert settings.engine is not None
    settings.engine.dispose()


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
        from airflow.models.taskinstance import TaskInstance
        from airflow.sdk.definitions.dag import _run_task
        from airflow.utils.session import create_session

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
