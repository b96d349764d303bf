"""Values in a Dag file that are known only when a task runs: versions and expressions.

Both are Airflow's own kind of late value, so that dependencies, mapping and the rendered page in
Airflow's UI work as they do for ``op.output``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
from airflow.sdk.exceptions import AirflowFailException

from muster.airflow.upstream.internals import PlainXComArg, ResolveMixin
from muster.core.errors import SpecError

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator

    from muster.airflow.upstream.internals import MappedOperator

_EXPRESSION = re.compile(r"\s*\{\{((?:(?!\{\{|\}\}).)+)\}\}\s*\Z", re.DOTALL)


@attrs.define
class VersionReference(PlainXComArg):
    """One entry of a task's result: the address of a version, or a list of addresses.

    :param path: where in the result, ``("versions", "features")`` or ``("passed",)``.
    """

    path: tuple[str, ...] = ()

    def resolve(self, context: Mapping[str, Any]) -> Any:
        """Return the pinned address, or a list of them; those of a mapped task in the order of its map."""
        value = PlainXComArg.resolve(self, context)
        # of a task in a mapped group, from outside of it
        if self.operator.is_mapped or isinstance(value, Sequence):
            return [address for result in value for address in _listed(self._pick(result, context))]
        return self._pick(value, context)

    def __str__(self) -> str:
        items = "".join(f"[{name!r}]" for name in self.path)
        return PlainXComArg.__str__(self).removesuffix(" }}") + items + " }}"

    def _pick(self, result: Any, context: Mapping[str, Any]) -> Any:
        for name in self.path:
            if not isinstance(result, Mapping) or name not in result:
                raise AirflowFailException(
                    f"task {self.operator.task_id!r} left no {' '.join(self.path)}: {self._why_none(context)}"
                )
            result = result[name]
        return result

    def _why_none(self, context: Mapping[str, Any]) -> str:
        """Say why a task has no result, by its state in Airflow, and what to do."""
        from airflow.sdk.exceptions import AirflowRuntimeError

        from muster.airflow.attempts.task_state import GONE, ask
        from muster.core.origin import Origin

        ti = context["ti"]
        try:
            state = ask(Origin(dag_id=ti.dag_id, run_id=ti.run_id, task_id=self.operator.task_id))
        except AirflowRuntimeError as error:
            return f"Airflow does not say what became of it ({error}); clear it"
        if state == "success":
            return "it was marked success before its job had made it; clear it to run it"
        if state in (None, GONE):
            return "it has not run in this Dag run; clear it to run it"
        return f"it is {state} in this Dag run; clear it to run it"


class VersionsReference(Mapping[str, VersionReference]):
    """The outputs of a task by name: ``features = JobOperator(…).versions["features"]``."""

    def __init__(self, operator: BaseOperator | MappedOperator, names: tuple[str, ...]) -> None:
        self._operator = operator
        self._names = names

    def __getitem__(self, name: str) -> VersionReference:
        if name not in self._names:
            raise SpecError(
                f"task {self._operator.task_id!r} has no output {name!r}; "
                f"its outputs are {', '.join(self._names) or 'none'}"
            )
        if not getattr(self._operator, "do_xcom_push", True):
            raise SpecError(
                f"task {self._operator.task_id!r} pushes no result (do_xcom_push=False), which .versions reads: let it"
            )
        return VersionReference(self._operator, path=("versions", name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class Late(ResolveMixin):
    """A value that is known when the task runs, and refers to no other task."""

    def iter_references(self) -> Iterator[Any]:
        """It names no task by itself; ``.versions`` does."""
        return iter(())


class Expression(Late):
    """``"{{ params.epochs }}"`` as a param: it keeps the type of what it names, where Jinja makes text of it."""

    def __init__(self, source: str) -> None:
        self.source = source

    def resolve(self, context: Mapping[str, Any]) -> Any:
        """Evaluate the expression. :raises jinja2.UndefinedError: it names the missing variable."""
        environment = context["dag"].get_template_env()
        inner = _EXPRESSION.match(self.source)
        assert inner is not None
        value = environment.compile_expression(inner[1], undefined_to_none=False)(**context)
        if isinstance(value, environment.undefined):
            value.__str__()  # a strict undefined raises here, with the name that is missing
        return value

    def __str__(self) -> str:
        return self.source


class RunValue(Late):
    """Stands for a value that only the run knows, in an instance of a mapped task that is built while a Dag is parsed."""

    def resolve(self, context: Mapping[str, Any]) -> Any:  # noqa: ARG002 - it stands for nothing yet
        """Return itself: no task runs with it."""
        return self


def keep_types(value: Any) -> Any:
    """Replace each text that is one Jinja expression by an :class:`Expression`, in lists and mappings too."""
    if isinstance(value, str):
        return Expression(value) if _EXPRESSION.match(value) else value
    if isinstance(value, Mapping):
        return {key: keep_types(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [keep_types(item) for item in value]
    return value


def is_known(value: Any) -> bool:
    """Whether a value is known while the Dag is parsed: no reference to a task, no Jinja in it."""
    if isinstance(value, str):
        return "{{" not in value and "{%" not in value
    if isinstance(value, Mapping):
        return all(is_known(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        return all(is_known(item) for item in value)
    return not isinstance(value, ResolveMixin)


def _listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def texts_in(value: Any, *, names: bool = False) -> Iterator[str]:
    """Yield every text in a value: its addresses, where it holds those. A reference to another task is no text.

    :param names: the names of mappings, too.
    """
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from texts_in([*(value if names else ()), *value.values()], names=names)
    elif isinstance(value, Sequence):
        for item in value:
            yield from texts_in(item, names=names)
