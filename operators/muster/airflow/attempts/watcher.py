"""A `muster run` that watches tasks in its own process, and how it names the instances of a mapped task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

from muster.airflow.upstream import internals
from muster.core.status import JobStatus
from muster.core.text import shortened

LONGEST_ARGUMENTS = 60
# An operator's keywords that hold an author's own names; the names are what tells instances apart.
_GROUPS = ("job_params", "params", "inputs", "op_kwargs")


class LineListener(Protocol):
    """Hears every job that a run waits for. Called from one thread, one call at a time.

    A task is called by its id, and an instance of a mapped task as :func:`called` says.
    """

    def lines(self, task: str, lines: Sequence[str]) -> None:
        """Its job wrote lines, or it printed them itself."""

    def job(self, task: str, status: JobStatus) -> None:
        """Its job, which goes on, is in another state, or waits for something else."""


@dataclass(frozen=True, kw_only=True)
class Watcher:
    """A ``muster run`` that runs a task in this process.

    :param stopping: whether the run was asked to end, perhaps before Airflow would have told the task.
    :param skipped: told why a task skips itself: Airflow only logs that.
    """

    listener: LineListener
    stopping: Callable[[], bool]
    skipped: Callable[[str], None]


_WATCHER: ContextVar[Watcher | None] = ContextVar("muster_watcher", default=None)


@contextmanager
def watching(by: Watcher) -> Iterator[None]:
    """Have all tasks that run inside this context watched."""
    token = _WATCHER.set(by)
    try:
        yield
    finally:
        _WATCHER.reset(token)


def watcher() -> Watcher | None:
    """The watcher of this context. Not of an operator: a mapped task is built only when it runs."""
    return _WATCHER.get()


def arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what tells one instance of a mapped task from the others, by the author's own names.

    What Airflow knows for a secret, and what has a secret's name, is ``***``: this is shown and kept.

    :param given: what was expanded: keywords of the operator, or arguments of a decorated function.
    """
    found: dict[str, Any] = {}
    for word, value in given.items():
        found.update(value if word in _GROUPS and isinstance(value, Mapping) else {word: value})
    return {name: internals.redact(value, name) for name, value in found.items()}


def called(task_id: str, map_index: int | None, told_apart: Mapping[str, Any]) -> str:
    """Return what people call an instance: ``fit[2] rate=0.1``; of a task that is not mapped its id."""
    if map_index is None or map_index < 0:
        return task_id
    text = " ".join(f"{name}={_short(value)}" for name, value in told_apart.items())
    return f"{task_id}[{map_index}] {shortened(text, LONGEST_ARGUMENTS)}".rstrip()


def _short(value: Any) -> str:
    return " ".join(str(value).replace("volume://", "").split())
