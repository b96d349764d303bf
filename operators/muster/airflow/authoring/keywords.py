"""The keywords of muster's operators. Each is declared once, in the body of the class that takes it.

::

    class JobOperator(MusterOperator):
        hang_timeout: timedelta | None = keyword(default=None, check=optional(check_span), spec=seconds)
        \"\"\"A job that writes no line and makes no progress for this long is treated as hung; None: never.\"\"\"

Everything else follows from the declaration: the constructor's signature for Airflow and (by PEP 681) for type checkers,
the attribute, ``template_fields``, the checks at parse time, ``default_args["muster"]``, mapped tasks, the decorators,
the field of the :class:`~muster.core.job.JobSpec` and the entry in ``docs/reference.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from importlib import import_module
from inspect import Parameter, Signature
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, dataclass_transform

from airflow.sdk.exceptions import AirflowException

from muster.airflow.authoring.references import texts_in
from muster.airflow.upstream.internals import BaseOperatorMeta, get_merged_defaults
from muster.core.errors import SpecError
from muster.core.names import nearest

if TYPE_CHECKING:
    from airflow.sdk import DAG, TaskGroup

T = TypeVar("T")

DEFAULTS = "muster"  # the key in a Dag's default_args that only muster's operators read
_REQUIRED = Parameter.empty
_LONGEST = 250  # characters of a job's name, DAG.TASK
# An author's words that Airflow's own constructor takes too, with another meaning. The author's value is kept under
# the attribute `job_WORD`, and travels under that name wherever Airflow reads the word itself.
SHARED = ("params", "queue", "resources")


@dataclass(frozen=True, kw_only=True)
class Keyword:
    """One keyword of an operator; :func:`keyword` says what the fields mean.

    :param attribute: the operator's attribute that holds the value.
    :param word: what an author writes.
    """

    attribute: str = ""
    word: str = ""
    default: Any = _REQUIRED
    read: Callable[[Any], Any] | None = None
    check: Callable[[Any], object] | None = None
    each: Callable[[Any], object] | None = None
    spec: Callable[[Any], Any] | None = None
    templated: bool = False
    for_all: bool = False
    own: bool = False
    late: bool = False
    airflow: str = ""
    reads: bool | Callable[[Any], Any] = False

    @property
    def parameter(self) -> str:
        """The constructor's parameter: Airflow takes ``params`` out of every call before an operator sees it."""
        return self.attribute if self.word == "params" else self.word

    @property
    def required(self) -> bool:
        """Whether it has no default."""
        return self.default is _REQUIRED

    @property
    def may_be_late(self) -> bool:
        """Whether a mapped task may leave its value to the run."""
        return self.templated or self.late or self.required


def keyword(
    *,
    default: Any = _REQUIRED,
    alias: str = "",
    init: bool = True,  # noqa: ARG001 - False tells type checkers that the constructor does not take it
    read: Callable[[Any], Any] | None = None,
    check: Callable[[Any], object] | None = None,
    each: Callable[[Any], object] | None = None,
    spec: Callable[[Any], Any] | None = None,
    templated: bool = False,
    for_all: bool = False,
    own: bool = False,
    late: bool = False,
    airflow: str = "",
    reads: bool | Callable[[Any], Any] = False,
) -> Any:
    """Declare a keyword: its name, type and description are those of the attribute that this is assigned to.

    :param default: without one the keyword is required.
    :param alias: what an author writes, where the attribute must have another name.
    :param read: converts the author's value into the attribute.
    :param check: refuses a wrong value while the Dag is parsed, with a SpecError.
    :param each: the same for each value of a mapping.
    :param spec: converts the rendered attribute into the JobSpec's field of the same name. The field of a time
        in seconds ends in ``_seconds``.
    :param templated: Airflow fills in Jinja and references to other tasks when the task runs.
    :param for_all: it may stand in ``default_args={"muster": {…}}``.
    :param own: the class's default holds whatever stands in ``default_args``.
    :param late: a mapped task may leave its value to the run; always so for required and templated keywords.
    :param airflow: the keyword of Airflow's constructor that the value is passed on to.
    :param reads: it names versions that the task reads, for lineage and the cache; or what of its value does.
    """
    return Keyword(
        word=alias,
        default=default,
        read=read,
        check=check,
        each=each,
        spec=spec,
        templated=templated,
        for_all=for_all,
        own=own,
        late=late,
        airflow=airflow,
        reads=reads,
    )


@dataclass_transform(kw_only_default=True, field_specifiers=(keyword,))
class AuthorKeywords(BaseOperatorMeta):
    """Makes constructors from declared keywords, and keeps an author's words apart from Airflow's.

    To Airflow ``params=`` of a task are overrides of the Dag's Params, and it merges the two before
    an operator sees them. To muster they are what the job's function is called with. So the
    author's keyword travels as ``job_params``, and a task's Airflow Params stay those of its Dag.

    A Dag's ``default_args`` are handed to every operator that takes the word, and Airflow's own operators take
    ``queue``, ``resources`` and ``env`` too. ``default_args={"muster": {"image": …, "queue": …}}`` reaches
    muster's operators alone.
    """

    keywords: Mapping[str, Keyword] = MappingProxyType({})
    for_all: set[str] = set()  # noqa: RUF012 - one for all classes, filled as they are made

    def __new__(
        mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any
    ) -> AuthorKeywords:
        """Make an operator's class; a plain value for a keyword of its base is a new default."""
        inherited = dict[str, Keyword]()
        for base in bases:
            for word, one in keywords_of(base).items():  # what several bases have comes after what one adds
                inherited[word] = inherited.pop(word, one)
        declared = {}
        for attribute, value in list(namespace.items()):
            if isinstance(value, Keyword):
                one = replace(namespace.pop(attribute), attribute=attribute, word=value.word or attribute)
            elif attribute in (known := {each.attribute: each for each in inherited.values()}):
                one = replace(known[attribute], default=namespace.pop(attribute))
            else:
                continue
            declared[one.word] = one
        mcs.for_all.update(one.word for one in declared.values() if one.for_all)
        if declared:
            keywords = {**declared, **{w: one for w, one in inherited.items() if w not in declared}}
            namespace["keywords"] = MappingProxyType(keywords)
            # job_params come first: other templated fields may name them, ``{{ task.job_params.month }}``
            templated = sorted(
                (each.attribute for each in keywords.values() if each.templated), key="job_params".__ne__
            )
            namespace["template_fields"] = tuple(templated)
            namespace["template_fields_renderers"] = {
                each.attribute: "json"
                for each in keywords.values()
                if each.templated and (each.each or each.spec)
            }
            ours = (vars(each) for base in bases for each in base.__mro__ if isinstance(each, AuthorKeywords))
            by_hand = any("__init__" in each and not hasattr(each["__init__"], "declared") for each in ours)
            if "__init__" not in namespace and not by_hand:
                namespace["__init__"] = _constructor(keywords)
        return super().__new__(mcs, name, bases, namespace, **options)  # type: ignore[no-untyped-call,no-any-return]

    def __call__(cls: type[T], *args: Any, **kwargs: Any) -> T:
        """Build an operator, or rebuild a mapped one from what its ``partial`` kept.

        :raises SpecError: it names the task, the keyword, the value and the rule.
        """
        task_id, keywords = kwargs.get("task_id", ""), keywords_of(cls)
        if "_airflow_from_mapped" in kwargs:
            _unmap(kwargs)
        elif "params" in kwargs:
            kwargs["job_params"] = kwargs.pop("params")
        kwargs = check_words(cls, task_id, kwargs)
        for each in keywords.values():
            if each.airflow and each.check is not None and each.word in kwargs:
                with refusing(task_id, each.word):
                    each.check(kwargs[each.word])
        own = {each.parameter: each.default for each in keywords.values() if each.own}
        defaults = {**_own_defaults(cls, kwargs), **own}
        if hasattr(cls.__init__, "declared"):
            kwargs = {**defaults, **kwargs}
        else:  # what a constructor that was written by hand passes on comes before
            kwargs["default_args"] = {**(kwargs.get("default_args") or {}), **defaults}
        with in_task(task_id):
            return super().__call__(*args, **kwargs)  # type: ignore[misc,no-any-return]


def keywords_of(operator: type) -> Mapping[str, Keyword]:
    """The keywords that muster declares for an operator, its bases' included, by the author's word."""
    found: Mapping[str, Keyword] = getattr(operator, "keywords", {})
    return found


def addresses_read(operator: type, value_of: Callable[[Keyword], Any]) -> Iterator[str]:
    """Yield every address, or Jinja, by which an operator's keywords name what its task reads."""
    if isinstance(operator, AuthorKeywords):
        for each in operator.keywords.values():
            if each.reads:
                value = value_of(each)
                yield from texts_in(each.reads(value) if callable(each.reads) else value)


def _constructor(keywords: Mapping[str, Keyword]) -> Callable[..., None]:
    """A constructor whose signature Airflow reads: for defaults, for mapped tasks and for what is missing."""

    def __init__(self: Any, **given: Any) -> None:  # noqa: N807 - what a class calls it
        self.construct(given)

    parameters = [
        Parameter(each.parameter, Parameter.KEYWORD_ONLY, default=each.default) for each in keywords.values()
    ]
    every = [
        Parameter("self", Parameter.POSITIONAL_OR_KEYWORD),
        *parameters,
        Parameter("given", Parameter.VAR_KEYWORD),
    ]
    __init__.__signature__ = Signature(every)  # type: ignore[attr-defined]
    __init__.declared = True  # type: ignore[attr-defined]  # and not written by hand, as a decorated function's
    return __init__


@contextmanager
def in_task(task_id: Any) -> Iterator[None]:
    """Turn an error of Airflow's about a keyword into a SpecError that names the task."""
    try:
        yield
    except (TypeError, ValueError, RuntimeError, AirflowException) as error:
        raise SpecError(f"task {task_id!r:.80}: {error}") from error


@contextmanager
def refusing(task_id: Any, field: str) -> Iterator[None]:
    """Put task and field in front of the message of a SpecError."""
    try:
        yield
    except SpecError as error:
        raise type(error)(f"task {task_id!r:.80}, {field}: {error}") from None


def check_words(operator: type, task_id: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return an operator's keywords.

    :raises SpecError: one that it does not take, with the nearest one.
    """
    _check_ids(task_id, given)
    known = _words_of(operator)
    for word in given:
        if word not in known and not word.startswith("_"):
            kind = getattr(operator, "custom_operator_name", operator.__name__)
            hint = _place(word, operator) or _near_word(word, operator, known)
            raise SpecError(f"task {task_id!r:.80}, {word}: {kind} takes no such keyword; {hint}")
    return dict(given)


def _check_ids(task_id: Any, given: Mapping[str, Any]) -> None:
    """Refuse a name that a job's records and Airflow's own headers cannot hold. :raises SpecError: it is named."""
    dag, group = _surroundings(given)
    if dag is not None and ".zip/" in dag.fileloc:
        raise SpecError(
            f"Dag {dag.dag_id} lies in a zip, {dag.fileloc}: its folder travels with its jobs, so unpack it"
        )
    inner = group.child_id(str(task_id)) if group else task_id  # type: ignore[no-untyped-call]
    whole = f"{dag.dag_id if dag else ''}.{inner}"
    if len(whole) > _LONGEST:
        raise SpecError(
            f"task {task_id!r:.80}: the ids of Dag and task have {len(whole)} characters together, {_LONGEST} at most"
        )
    names = {"Dag": getattr(dag, "dag_id", ""), "task group": getattr(group, "group_id", ""), "task": task_id}
    for what, name in names.items():
        if not str(name or "").isascii():
            raise SpecError(
                f"{what} {name!r:.80}: expected letters of a to z, digits, '_', '-' and '.' in the id of what runs "
                f"muster's tasks; {'task' if what == 'task' else 'dag' if what == 'Dag' else 'group'}_display_name= "
                "takes any text"
            )


def _place(word: str, operator: type) -> str:
    """Say where a word is written that is a field of a keyword's value; empty if it is none."""
    for each in keywords_of(operator).values():
        if is_dataclass(each.default) and word in {field.name for field in fields(each.default)}:
            return f"write {each.word}={type(each.default).__name__}({word}=…)"
    return ""


def _near_word(word: str, operator: type, known: Collection[str]) -> str:
    """Say which keyword may be meant: one of the operator's own before one of Airflow's."""
    own, every = (
        sorted(name for name in names if not name.startswith(("job_", "op_", "python_")))
        for names in (keywords_of(operator), known)
    )
    near = nearest(word, own) or nearest(word, every)
    return f"did you mean {near}?" if near else f"it takes {', '.join(own)}, and Airflow's own"


def _words_of(operator: type) -> frozenset[str]:
    """Every keyword that an operator takes, Airflow's included."""
    every = [
        getattr(vars(each).get("__init__"), "_BaseOperatorMeta__param_names", ()) for each in operator.__mro__
    ]
    return frozenset({"params", "default_args"}.union(*every))


def _own_defaults(operator: type, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The values in ``default_args["muster"]`` of Dag, task group and task that such an operator takes.

    :raises SpecError: it is no mapping, or has a word that no operator takes as a default for all tasks.
    """
    given = merged_defaults(kwargs).get(DEFAULTS, {})
    if not isinstance(given, Mapping):
        raise SpecError(
            f"default_args[{DEFAULTS!r}] is {given!r:.60}: expected a mapping, such as {{'image': 'train'}}"
        )
    for word in given:
        if word not in AuthorKeywords.for_all and word not in (known := _words_for_all()):
            raise SpecError(
                f"default_args[{DEFAULTS!r}][{word!r:.60}]: no default for all tasks{_near(word, known)}"
            )
    taken = {word for word, one in keywords_of(operator).items() if one.for_all}
    return {word: value for word, value in given.items() if word in taken}


def _words_for_all() -> frozenset[str]:
    """Every word that may stand in ``default_args["muster"]``. Imports all operators: a Dag file may use only some."""
    public = import_module("muster.airflow")
    for name in public.__all__:
        getattr(public, name)
    return frozenset(AuthorKeywords.for_all)


def merged_defaults(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The ``default_args`` that an operator with these keywords has from its Dag, its group and itself."""
    dag, group = _surroundings(kwargs)
    merged, _ = get_merged_defaults(
        dag=dag, task_group=group, task_params=None, task_default_args=kwargs.get("default_args")
    )
    return merged


def _surroundings(kwargs: Mapping[str, Any]) -> tuple[DAG | None, TaskGroup | None]:
    """The Dag and the task group in which an operator with these keywords is made."""
    from muster.airflow.upstream.internals import DagContext, TaskGroupContext

    dag: DAG | None = kwargs.get("dag") or DagContext.get_current()
    return dag, kwargs.get("task_group") or (TaskGroupContext.get_current(dag) if dag else None)


def _near(word: str, known: Any) -> str:
    near = nearest(str(word), known)
    return f"; did you mean {near}?" if near else f"; it takes {', '.join(sorted(known))}"


def _unmap(kwargs: dict[str, Any]) -> None:
    """Put the author's words back in the place of Airflow's."""
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
