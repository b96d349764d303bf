"""Mapped tasks: checked while the Dag is parsed like other tasks, and with ``.versions`` for later tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Self, cast

from muster.airflow.attempts.verdicts import translated
from muster.airflow.authoring.keywords import SHARED, check_words, in_task, keywords_of
from muster.airflow.authoring.references import RunValue, VersionReference, VersionsReference
from muster.airflow.upstream.internals import (
    DictOfListsExpandInput,
    ListOfDictsExpandInput,
    MappedOperator,
    OperatorPartial,
    ResolveMixin,
    partial as airflow_partial,
)
from muster.core.errors import SpecError

if TYPE_CHECKING:
    from airflow.sdk import Context
    from jinja2 import Environment

    from muster.airflow.operators.base import MusterOperator
    from muster.airflow.upstream.internals import ExpandInput

# Instances that are built while a Dag is parsed, to check them and to find their volumes. Each costs a millisecond.
# Further ones are checked when they run; Airflow announces no volume that only they write.
_SAMPLES = 32


def begin(operator: type[MusterOperator], kwargs: dict[str, Any], *, default_queue: str) -> TaskPartial:
    """Begin a mapped task. Airflow's scheduler reads the kept keywords, so the author's words are kept under other names.

    :param default_queue: the executor's, for a task that names none.
    """
    task_id = kwargs.get("task_id", "")
    kwargs = check_words(operator, task_id, kwargs)
    authors = {f"job_{word}": kwargs.pop(word) for word in SHARED if word in kwargs}
    queue = kwargs.pop("airflow_queue", None) or default_queue
    with in_task(task_id):
        begun = airflow_partial(operator, **kwargs, queue=queue, resources=None)
    begun._expand_called = True  # the one below goes on
    del begun.kwargs["resources"]
    mine = TaskPartial(operator_class=operator, kwargs=begun.kwargs, params=begun.params)
    mine.kwargs.update(authors)
    return mine


class Mapped:
    """The members that mapped tasks of muster have beside those of Airflow's."""

    __slots__ = ()

    @property
    def versions(self) -> VersionsReference:
        """References to the versions of all instances: each renders to a list, in the order of the map."""
        task = cast("MappedOperator", self)
        known = {**task.partial_kwargs, **next(_instances(task._get_specified_expand_input()), {})}
        operator = cast("type[MusterOperator]", task.operator_class)
        return VersionsReference(task, operator.output_names(known))

    @property
    def passed(self) -> VersionReference:
        """The versions that all instances let pass, of a mapped validation or gate."""
        task = cast("MappedOperator", self)
        if not hasattr(task.operator_class, "passed"):
            raise AttributeError(
                f"task {task.task_id!r}: {task.task_type} lets nothing pass; take .versions[…]"
            )
        return VersionReference(task, path=("passed",))

    def complete(self) -> Self:
        """Check the instances, and tell Airflow their assets.

        :raises SpecError: one of them would be refused when it runs.
        """
        task = cast("MappedOperator", self)
        _refuse_lists(task.task_id, task._get_specified_expand_input())
        outlets = list(task.outlets)
        for sample in self.samples():
            outlets += [asset for asset in sample.outlets if asset not in outlets]
        task.outlets = outlets
        return self

    def samples(self) -> Iterator[MusterOperator]:
        """Its instances as far as the Dag file shows them, :data:`_SAMPLES` at most.

        A value that only the run knows is :class:`RunValue`.
        """
        task = cast("MappedOperator", self)
        expanded = task._get_specified_expand_input()
        arguments = expanded is not task.expand_input  # of a decorated function, and not keywords
        for number, given in enumerate(islice(_instances(expanded), _SAMPLES)):
            try:
                made = self.unmap({"op_kwargs": given} if arguments else _without_late(given, task))
            except SpecError as error:
                raise SpecError(f"{error} (mapped instance {number})") from error
            yield made

    def unmap(self, resolve: Mapping[str, Any]) -> MusterOperator:
        """Build an instance, and keep its arguments in it."""
        made = cast("MusterOperator", super().unmap(resolve))  # type: ignore[misc]
        expanded = cast("MappedOperator", self)._get_specified_expand_input()
        made.given = told_apart(resolve or {}, expanded)
        return made

    def render_template_fields(self, context: Context, jinja_env: Environment | None = None) -> None:
        """Build the instance; an error in it is final, as in a task that is not mapped."""
        from jinja2 import TemplateError

        with translated():
            try:
                super().render_template_fields(context, jinja_env)  # type: ignore[misc]
            except TemplateError as error:
                raise SpecError(f"a template of this mapped task: {error}") from None


class MappedTask(Mapped, MappedOperator):
    """An operator of muster that was expanded."""

    __slots__ = ()


class TaskPartial(OperatorPartial):
    """A mapped task of muster before it is expanded."""

    def expand(self, **mapped: Any) -> MappedTask:
        """Make one instance for each element of a list, over ``inputs``, ``params`` and whatever else is given."""
        self._expand_called = True  # Airflow warns of one that never was, which an error tells better
        with in_task(self.kwargs["task_id"]):
            mapped = check_words(self.operator_class, self.kwargs["task_id"], mapped)
            return cast("MappedTask", super().expand(**_authors(mapped)))

    def expand_kwargs(self, kwargs: Any, *, strict: bool = True) -> MappedTask:
        """Make one instance for each mapping of keywords."""
        if isinstance(kwargs, Sequence):
            kwargs = [_authors(each) if isinstance(each, Mapping) else each for each in kwargs]
        with in_task(self.kwargs["task_id"]):
            return cast("MappedTask", super().expand_kwargs(kwargs, strict=strict))

    def _expand(self, expand_input: ExpandInput, *, strict: bool) -> MappedTask:
        mapped = super()._expand(expand_input, strict=strict)
        mapped.__class__ = MappedTask  # Airflow's method names its own class; ours adds no state
        return cast("MappedTask", mapped).complete()


def told_apart(given: Mapping[str, Any], expanded: ExpandInput) -> dict[str, Any]:
    """Leave out the arguments of a decorated function that all of its instances share."""
    if isinstance(expanded, DictOfListsExpandInput) and "op_kwargs" in given:
        return {word: value for word, value in given["op_kwargs"].items() if word in expanded.value}
    return dict(given)


def _authors(words: Mapping[str, Any]) -> dict[str, Any]:
    return {"job_params" if word == "params" else word: value for word, value in words.items()}


def _instances(expanded: ExpandInput) -> Iterator[dict[str, Any]]:
    """The keywords of each instance; of a product of lists, each element of each list once."""
    if isinstance(expanded, ListOfDictsExpandInput):
        if not isinstance(expanded.value, ResolveMixin):
            yield from (dict(each) for each in expanded.value if isinstance(each, Mapping))
        return
    lists = {word: _elements(value) for word, value in expanded.value.items()}
    if not all(lists.values()):
        return  # Airflow runs no instance then
    first = {word: elements[0] for word, elements in lists.items()}
    yield first
    for word, elements in lists.items():
        yield from ({**first, word: element} for element in elements[1:])


def _without_late(given: Mapping[str, Any], task: MappedOperator) -> dict[str, Any]:
    """Leave out values that only the run knows, for keywords that cannot hold a stand-in."""
    late = {each.parameter for each in keywords_of(task.operator_class).values() if each.may_be_late}
    return {word: value for word, value in given.items() if word in late or not isinstance(value, RunValue)}


def _elements(value: Any) -> list[Any]:
    if isinstance(value, ResolveMixin):
        return [RunValue()]
    return list(value.items()) if isinstance(value, Mapping) else list(value)


def _refuse_lists(task_id: str, expanded: ExpandInput) -> None:
    """Refuse to expand over the versions of one task: Airflow counts results, and not their elements."""
    for word, value in expanded.value.items() if isinstance(expanded, DictOfListsExpandInput) else ():
        if isinstance(value, VersionReference) and not value.operator.is_mapped:
            raise SpecError(
                f"task {task_id!r}, expand({word}=…): how many versions {value.operator.task_id!r} left is known to "
                "no scheduler: list them in a task, @task def each(versions): return versions, and expand over that"
            )
