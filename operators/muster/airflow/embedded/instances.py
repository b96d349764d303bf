"""The instances of a mapped task: the arguments that distinguish them."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from muster.airflow.attempts.watcher import arguments


def runs_a_job(task: Any) -> bool:
    """Whether a task's work is one job of muster's."""
    return bool(getattr(operator_class(task), "runs_a_job", False))


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


def operator_class(task: Any) -> Any:
    """Return the class of a task, or of the instances of a mapped one."""
    return task.operator_class if task.is_mapped else type(task)


def plain(value: Any) -> Any:
    """Return a value as JSON has it: anything else as its text."""
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)
