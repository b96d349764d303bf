"""What an author's keywords mean to muster's operators, where they differ from Airflow's, and which there are."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from airflow.sdk.bases.operator import BaseOperatorMeta, get_merged_defaults
from airflow.sdk.exceptions import AirflowException

from muster.core.errors import SpecError
from muster.core.names import nearest

if TYPE_CHECKING:
    from airflow.sdk import DAG, TaskGroup

DEFAULTS = "muster"  # the name in a Dag's default_args under which no other operator finds anything
FOR_ALL = frozenset(
    {
        "image",
        "resources",
        "queue",
        "priority",
        "secrets",
        "env",
        "require_gpus",
        "pod_override",
        "launcher",
        "max_restarts",
        "resume_from_checkpoint",
        "run_timeout",
        "queue_timeout",
        "hang_timeout",
        "load_timeout",
    }
)


class AuthorKeywords(BaseOperatorMeta):
    """Keeps an author's ``params``, ``queue`` and ``resources`` apart from Airflow's, and refuses unknown words.

    To Airflow ``params=`` of a task are overrides of the Dag's Params, and it merges the two before
    an operator sees them. To muster they are what the job's function is called with. So the
    author's keyword travels as ``job_params``, and a task's Airflow Params stay those of its Dag.

    What a Dag's tasks have in common stands in its ``default_args``. Airflow hands each of those to
    every operator that knows the word, and its own operators know ``queue``, ``resources`` and
    ``env`` too. ``default_args={"muster": {"image": …, "queue": …}}`` reaches muster's alone.

    :cvar own: keywords whose values are a class's own, which no default for all tasks replaces: a
        Dag's usual image has no Great Expectations in it.
    """

    own: Mapping[str, Any] = MappingProxyType({})

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 - a metaclass: what it makes are classes
        """Build an operator, or rebuild a mapped one from what its ``partial`` kept.

        :raises SpecError: it names the task, the keyword, the value and the rule.
        """
        task_id = kwargs.get("task_id", "")
        if "_airflow_from_mapped" in kwargs:
            _unmap(kwargs)
        elif "params" in kwargs:
            kwargs["job_params"] = kwargs.pop("params")
        check_words(cls, task_id, kwargs)
        for word, value in {**own_defaults(cls, kwargs), **cls.own}.items():
            kwargs.setdefault(word, value)
        _check_airflows(task_id, kwargs)
        with in_task(task_id):
            return super().__call__(*args, **kwargs)


@contextmanager
def in_task(task_id: Any) -> Iterator[None]:
    """Make what Airflow says against a keyword's value one error that names the task."""
    try:
        yield
    except (TypeError, ValueError, RuntimeError, AirflowException) as error:
        raise SpecError(f"task {task_id!r:.80}: {error}") from error


@contextmanager
def refusing(task_id: Any, field: str) -> Iterator[None]:
    """Name task and field in front of what a value was refused for."""
    try:
        yield
    except SpecError as error:
        raise type(error)(f"task {task_id!r:.80}, {field}: {error}") from None


def check_words(operator: type, task_id: Any, given: Mapping[str, Any]) -> None:
    """Refuse a keyword that an operator does not take. :raises SpecError: it names the nearest one."""
    known = words_of(operator)
    for word in given:
        if word not in known and not word.startswith("_"):
            shown = sorted(name for name in known if not name.startswith(("job_", "op_", "python_")))
            kind = getattr(operator, "custom_operator_name", operator.__name__)
            raise SpecError(f"task {task_id!r:.80}, {word}: {kind} takes no such keyword{_near(word, shown)}")


def _check_airflows(task_id: Any, given: Mapping[str, Any]) -> None:
    """Airflow's own words, where it would take what no task can mean, or not say whose word it was."""
    retries, delay, queue = given.get("retries"), given.get("retry_delay"), given.get("airflow_queue")
    seconds: Any = delay.total_seconds() if isinstance(delay, timedelta) else delay
    rules = {
        "retries": (retries, type(retries) is int and retries >= 0, "a whole number, 0 or more"),
        "retry_delay": (
            delay,
            type(seconds) in (int, float) and 0 <= seconds < math.inf,
            "a timedelta from 0 on",
        ),
        "airflow_queue": (
            queue,
            isinstance(queue, str) and queue.isprintable() and len(queue) in range(1, 257),
            "a name",
        ),
    }
    for word, (value, holds, expected) in rules.items():
        if value is not None and not holds:
            raise SpecError(f"task {task_id!r:.80}, {word}: {value!r:.60}: expected {expected}")


def words_of(operator: type) -> frozenset[str]:
    """Every keyword that an operator takes, Airflow's included."""
    every = [
        getattr(vars(each).get("__init__"), "_BaseOperatorMeta__param_names", ()) for each in operator.__mro__
    ]
    return frozenset({"params", "default_args"}.union(*every))


def own_defaults(operator: type, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """What the Dag, the task group and the task itself have as ``default_args["muster"]`` for such an operator.

    :raises SpecError: it is no mapping, or has a word that is none of :data:`FOR_ALL`.
    """
    given = merged_defaults(kwargs).get(DEFAULTS, {})
    if not isinstance(given, Mapping):
        raise SpecError(
            f"default_args[{DEFAULTS!r}] is {given!r:.60}: expected a mapping, such as {{'image': 'train'}}"
        )
    for word in given:
        if word not in FOR_ALL:
            raise SpecError(
                f"default_args[{DEFAULTS!r}][{word!r:.60}]: no default for all tasks{_near(word, FOR_ALL)}"
            )
    return {word: value for word, value in given.items() if word in words_of(operator)}


def merged_defaults(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The ``default_args`` that an operator with these keywords has from its Dag, its group and itself."""
    from airflow.sdk.definitions._internal.contextmanager import DagContext, TaskGroupContext

    dag: DAG | None = kwargs.get("dag") or DagContext.get_current()
    group: TaskGroup | None = kwargs.get("task_group") or (TaskGroupContext.get_current(dag) if dag else None)
    merged, _ = get_merged_defaults(
        dag=dag, task_group=group, task_params=None, task_default_args=kwargs.get("default_args")
    )
    return merged


def _near(word: str, known: Any) -> str:
    near = nearest(str(word), known)
    return f"; did you mean {near}?" if near else f"; it takes {', '.join(sorted(known))}"


def _unmap(kwargs: dict[str, Any]) -> None:
    """Put the author's words back; what stands under them is Airflow's."""
    params = kwargs.pop("params")
    if any(params.get_param(name).source is None for name in params):
        raise SpecError(
            f"task {kwargs['task_id']!r}: what a task hands to expand_kwargs says job_params, not params, "
            "which Airflow takes for the Dag's Params"
        )
    kwargs["airflow_queue"] = kwargs.pop("queue")
    for name in ("queue", "resources"):
        if f"job_{name}" in kwargs:
            kwargs[name] = kwargs.pop(f"job_{name}")
