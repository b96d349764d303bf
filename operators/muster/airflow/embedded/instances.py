"""The instances of a mapped task: the arguments that distinguish them, and their results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from muster.airflow.attempts.watcher import arguments, called
from muster.airflow.embedded.result import Instance

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun

    from muster.airflow.embedded.loop import Loop
    from muster.airflow.embedded.runs import Runs


class Instances:
    """The instances of one run's mapped tasks.

    :param overhead: returns the seconds of a stage outside its job, from the job and the stage's seconds.
    """

    def __init__(
        self,
        runs: Runs,
        run: DagRun,
        loop: Loop,
        overhead: Callable[[str | None, float | None], float | None],
    ) -> None:
        self._runs = runs
        self._run = run
        self._loop = loop
        self._overhead = overhead

    def of(self, task_id: str) -> tuple[Instance, ...]:
        """Return all instances of a task, in the order of its map; none if it is not mapped or not expanded yet."""
        return tuple(self._of(task_id))

    def one(self, task_id: str, map_index: int) -> Instance:
        """Return one instance of a task."""
        return self._instance(task_id, map_index, self._runs.instances(self._run, task_id)[map_index])

    def _of(self, task_id: str) -> Iterator[Instance]:
        for map_index, state in self._runs.instances(self._run, task_id).items():
            yield self._instance(task_id, map_index, state)

    def _instance(self, task_id: str, map_index: int, state: str) -> Instance:
        seconds, message = self._loop.of_instance(task_id, map_index)
        given = self._loop.arguments(task_id, map_index)
        result = self._runs.result(self._run, task_id, map_index) if state == "success" else None
        made: Mapping[str, Any] = result if isinstance(result, Mapping) else {}
        job_id, kept = made.get("job_id"), (task_id, map_index) in self._runs.taken(self._run)
        return Instance(
            map_index=map_index,
            label=called(task_id, map_index, given),
            state=state,
            arguments={name: plain(value) for name, value in given.items()},
            seconds=seconds,
            overhead_seconds=None if kept else self._overhead(job_id, seconds),
            job_id=job_id,
            versions={name: addresses(value) for name, value in made.get("versions", {}).items()},
            metrics=made.get("metrics", {}),
            message=message,
            kept=kept,
        )


def addresses(value: Any) -> tuple[str, ...]:
    """Return the versions of one output from a task's result: one address, or several."""
    return (value,) if isinstance(value, str) else tuple(value)


def runs_a_job(task: Any) -> bool:
    """Whether a task's work is one job of muster's."""
    return bool(getattr(_operator_class(task), "runs_a_job", False))


def known_arguments(task: Any, map_index: int) -> Mapping[str, Any]:
    """Return an instance's arguments as far as the Dag's file holds them; empty if an earlier task gives them.

    An instance of a task in a mapped task group has no arguments of its own.
    """
    if map_index < 0 or not task.is_mapped:
        return {}
    expanded = task._get_specified_expand_input()
    if any(True for _ in expanded.iter_references()):
        return {}
    given, _ = expanded.resolve({"ti": SimpleNamespace(map_index=map_index)})
    return arguments(given)


def arguments_of(task: Any, made: Any) -> Mapping[str, Any]:
    """Return the arguments that distinguish a built instance from the others.

    :param task: the mapped task, `made` the instance.
    """
    from muster.airflow.operators.base import MusterOperator
    from muster.airflow.operators.mapping import told_apart

    if isinstance(made, MusterOperator):
        return made.arguments
    words = getattr(made, "op_kwargs", None)
    if words is None or not task.is_mapped:
        return {}
    return arguments(told_apart({"op_kwargs": words}, task._get_specified_expand_input()))


def _operator_class(task: Any) -> Any:
    return task.operator_class if task.is_mapped else type(task)


def plain(value: Any) -> Any:
    """Return a value as JSON has it: anything else as its text."""
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)
