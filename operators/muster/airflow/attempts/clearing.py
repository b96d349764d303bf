"""Remembers that a task was cleared while it ran, where Airflow forgets it with the process that ran it.

A task that is cleared while it runs is `restarting` until its process has ended; Airflow then raises its
``max_tries``, by which the next try knows that it has to begin anew. Where the process, its worker or the
scheduler died instead, Airflow (3.3.2) resets the task and raises nothing, and the next try could not be told
from one that goes on with the job of a try that was lost.
"""

from __future__ import annotations

from typing import Any

_FORGETS = (None, "up_for_retry", "scheduled", "queued")


def remember_clears() -> None:
    """Have ``max_tries`` raised whenever this process takes a task out of `restarting` for another try. Idempotent."""
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy import event

    if not event.contains(TaskInstance.state, "set", _raise_max_tries):
        event.listen(TaskInstance.state, "set", _raise_max_tries)


def _raise_max_tries(task: Any, state: Any, before: Any, _initiator: Any) -> None:
    from sqlalchemy import inspect

    if before != "restarting" or state not in _FORGETS:
        return
    if not inspect(task).attrs.max_tries.history.has_changes():
        task.max_tries += 1
