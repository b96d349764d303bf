"""``@job`` and ``@gang``: a function that stands in the Dag file and runs in an image.

Airflow offers them as ``@task.job`` and ``@task.gang``, too. These here are typed: a type checker
knows their keywords, and that what a call returns has ``.versions``.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, cast, overload

import attrs
from airflow.sdk import XComArg

from muster.airflow.authoring.entrypoints import check_parameters
from muster.airflow.authoring.keywords import SHARED, check_words, in_task, merged_defaults, refusing
from muster.airflow.authoring.references import VersionReference, VersionsReference
from muster.airflow.authoring.source import FunctionSource, source_of
from muster.airflow.operators.base import RETRIES, RETRY_DELAY, default_queue
from muster.airflow.operators.job import FunctionOperator, JobOperator
from muster.airflow.operators.mapping import Mapped
from muster.airflow.upstream import internals
from muster.core.address import SCHEME
from muster.core.errors import SpecError
from muster.core.job import Launcher, Role

if TYPE_CHECKING:
    from muster.airflow.authoring.code import Code, DagFolder
    from muster.airflow.authoring.keywords import keyword
    from muster.core.settings import Settings

_PATHS = frozenset({"Path", "PurePath", "PosixPath", "PurePosixPath"})
_TAKEN = JobOperator.keywords.keys() - FunctionOperator.keywords.keys()  # they say what runs


class DecoratedJob(JobOperator):
    """Run a function of the Dag file as a job; :func:`job` says how it is written.

    :param python_callable: the function. `op_args` and `op_kwargs` are what it was called with.
    """

    custom_operator_name = "@task.job"
    shallow_copy_attrs: Sequence[str] = ("python_callable",)

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        task_id: str,
        op_args: Collection[Any] = (),
        op_kwargs: Mapping[str, Any] | None = None,
        inputs: Mapping[str, Any] | None = None,
        outputs: Mapping[str, Any] | None = None,
        job_params: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        for word in sorted(_TAKEN):
            if kwargs.get(word) is not None:
                raise SpecError(
                    f"task {task_id!r}, {word}: the decorated function is what runs; leave it out"
                )
        if not getattr(self, "_BaseOperator__from_mapped", False):
            task_id = internals.get_unique_task_id(task_id, kwargs.get("dag"), kwargs.get("task_group"))
        with refusing(task_id, "function"):
            self.python_callable, self.source = python_callable, source_of(python_callable)
            called = _bind(python_callable, self.source, op_args, op_kwargs or {}, outputs or {})
        bound = {name: value for name, value in called.items() if _is_input(self.source, name, value)}
        kwargs |= {
            "entrypoint": f"{_identifier(self.source.file.stem)}:{self.source.name}",
            "inputs": {**(inputs or {}), **bound},
            "job_params": {**(job_params or {}), **{n: v for n, v in called.items() if n not in bound}},
        }
        super().__init__(task_id=task_id, outputs=outputs or {}, **kwargs)
        with self.refusing("function"):
            where = f"{self.source.place} {self.source.name}()"
            check_parameters(self.source.node, where, {*self.inputs}, {*self.outputs}, {*self.job_params})

    def travelling(self, folder: DagFolder, settings: Settings | None = None) -> Code:
        """The Dag's folder, in which the function's file holds the function alone."""
        code, file = super().travelling(folder, settings), self._file(folder)
        if file in code.files and file != self._place(folder):
            raise SpecError(
                f"{self.source.file.name} would become {file} in the job, which is there too: rename one"
            )
        return code.having(file, self.source.text)

    def gang(self, folder: DagFolder) -> tuple[Role, ...]:
        """The one role, which runs the function."""
        module = self._file(folder).removesuffix(".py").replace("/", ".")
        return tuple(
            replace(role, entrypoint=f"{module}:{self.source.name}") for role in super().gang(folder)
        )

    def _file(self, folder: DagFolder) -> str:
        """The path of the function's file in the job: every part of it can be imported."""
        place = PurePosixPath(self._place(folder))
        return "/".join([*map(_identifier, place.parts[:-1]), f"{_identifier(place.stem)}.py"])

    def _place(self, folder: DagFolder) -> str:
        file = self.source.file.absolute()
        return file.relative_to(folder.root).as_posix() if file.is_relative_to(folder.root) else file.name


class DecoratedGang(DecoratedJob):
    """Run a function of the Dag file as a gang; :func:`gang` says how it is written."""

    custom_operator_name = "@task.gang"

    launcher = Launcher.TORCHRUN


def _bind(
    function: Callable[..., Any],
    source: FunctionSource,
    args: Collection[Any],
    kwargs: Mapping[str, Any],
    outputs: Collection[str],
) -> dict[str, Any]:
    """What the function was called with, by parameter. :raises SpecError: it cannot be called so."""
    signature = inspect.signature(function)
    where = f"{source.place} {source.name}()"
    try:
        called = dict(signature.bind_partial(*args, **kwargs).arguments)
    except TypeError as error:
        takes = ", ".join(name for name in signature.parameters if name not in outputs)
        raise SpecError(f"{where}: {error}; it takes {takes or 'nothing'}") from error
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            called.update(called.pop(name, {}))
        elif parameter.kind is parameter.VAR_POSITIONAL and name in called:
            raise SpecError(f"{where}: values are given by name; take the *{name} away")
    for name in outputs:
        if name in called:
            raise SpecError(
                f"{where}: {name!r} is an output, a folder that it writes: leave it out of the call"
            )
    return called


def _is_input(source: FunctionSource, name: str, value: Any) -> bool:
    """Whether an argument names versions: its parameter is a path, or the value cannot be anything else."""
    annotation = source.annotation(name)
    nodes = list(ast.walk(annotation)) if annotation is not None else []
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    names |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return bool(names & _PATHS) or _is_version(value)


def _is_version(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return bool(value) and all(map(_is_version, value))
    return isinstance(value, VersionReference) or (isinstance(value, str) and value.startswith(SCHEME))


def _identifier(name: str) -> str:
    """A name that can be imported: ``my-dag`` as ``my_dag``."""
    plain = re.sub(r"[^A-Za-z0-9_]", "_", name)
    return f"_{plain}" if plain[:1].isdigit() else plain


P = ParamSpec("P")
Function = Callable[..., Mapping[str, float] | None]


if TYPE_CHECKING:

    class _Keywords(FunctionOperator):
        """What ``@job`` and ``@gang`` take: a task that is given no name is called as its function."""

        task_id: str = keyword(default="")

else:
    _Keywords = DecoratedJob


class Decorator(Protocol[P]):
    """``@job`` with or without keywords, for type checkers: those of an operator."""

    @overload
    def __call__(self, python_callable: Function, /) -> Task: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, *args: P.args, **keywords: P.kwargs) -> Callable[[Function], Task]: ...


def typed(keywords: Callable[P, Any]) -> Callable[[Callable[..., Any]], Decorator[P]]:  # noqa: ARG001
    """Tell type checkers that a function takes the keywords of an operator."""
    return lambda function: cast("Decorator[P]", function)


class TaskResult(internals.PlainXComArg):
    """The result of calling a decorated function in a Dag file: a task and its versions."""

    @property
    def versions(self) -> VersionsReference:
        """References to the versions that the task commits: ``train(…).versions["model"]``.

        Of a task that was expanded each renders to a list, in the order of the map.
        """
        return cast("DecoratedJob | MappedFunction", self.operator).versions


class Task(Protocol):
    """A decorated function: call it in a Dag to make a task of it.

    Arguments for parameters annotated ``Path`` or ``list[Path]`` are inputs: addresses, other tasks'
    ``.versions[…]``, or lists of these. All others are params: JSON values, or Jinja such as
    ``"{{ params.epochs }}"``, which keeps its type. Outputs and ``checkpoints`` are not given.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> TaskResult:
        """Make a task of it, in the Dag around the call."""

    def override(self, **keywords: Any) -> Task:
        """The same function with other keywords: ``train.override(task_id="big", replicas=4)``."""

    def partial(self, **kwargs: Any) -> Task:
        """Fix the arguments that all instances of a mapped task share."""

    def expand(self, **kwargs: Any) -> TaskResult:
        """Make a mapped task: one instance for each element of a list, ``.expand(month=["2013-01", "2013-02"])``."""

    def expand_kwargs(self, kwargs: Any, *, strict: bool = ...) -> TaskResult:
        """Make a mapped task: one instance for each mapping of arguments."""


class MappedFunction(Mapped, internals.DecoratedMappedOperator):
    """A decorated function that was expanded."""

    __slots__ = ()


class _Decorator(internals._TaskDecorator[Any, Any, DecoratedJob]):
    """Airflow's own, for operators whose function is read and not called."""

    def __attrs_post_init__(self) -> None:
        task_id = self.kwargs.get("task_id", getattr(self.function, "__name__", ""))
        with refusing(task_id, "function"):
            source_of(self.function)
        if "params" in self.kwargs:
            self.kwargs["job_params"] = self.kwargs.pop("params")
        self.kwargs = check_words(self.operator_class, task_id, self.kwargs)
        with in_task(task_id):
            super().__attrs_post_init__()  # type: ignore[no-untyped-call]

    def __call__(self, *args: Any, **kwargs: Any) -> TaskResult:
        return TaskResult(super().__call__(*args, **kwargs).operator)  # type: ignore[attr-defined]

    def partial(self, **kwargs: Any) -> _Decorator:
        with in_task(self.kwargs["task_id"]):
            return cast("_Decorator", super().partial(**kwargs))

    def expand(self, **map_kwargs: Any) -> TaskResult:
        with in_task(self.kwargs["task_id"]):
            internals.prevent_duplicates(
                self.kwargs.get("op_kwargs", {}), map_kwargs, fail_reason="mapping already partial"
            )
            return cast("TaskResult", super().expand(**map_kwargs))

    def expand_kwargs(self, kwargs: Any, *, strict: bool = True) -> TaskResult:
        with in_task(self.kwargs["task_id"]):
            return cast("TaskResult", super().expand_kwargs(kwargs, strict=strict))

    def _expand(self, expand_input: internals.ExpandInput, *, strict: bool) -> TaskResult:
        words = {word: value for word, value in self.kwargs.items() if word not in SHARED}
        words["queue"] = default_queue(words.pop("airflow_queue", None))
        words["resources"] = None
        for word, value in (("retries", RETRIES), ("retry_delay", RETRY_DELAY)):
            words.setdefault(word, merged_defaults(self.kwargs).get(word, value))
        made = super(_Decorator, attrs.evolve(self, kwargs=words))._expand(expand_input, strict=strict)
        mapped = cast("internals.PlainXComArg", made).operator
        mapped.__class__ = MappedFunction  # Airflow's method names its own class; ours adds no state
        task = cast("MappedFunction", mapped)
        del task.partial_kwargs["resources"]
        task.partial_kwargs |= {f"job_{word}": self.kwargs[word] for word in SHARED if word in self.kwargs}
        XComArg.apply_upstream_relationship(task, task.partial_kwargs["op_kwargs"])
        return TaskResult(task.complete())


@typed(_Keywords)
def job(python_callable: Function | None = None, **keywords: Any) -> Any:
    """Make a function of the Dag file a job.

    ::

        from muster.airflow import job


        @job(image="etl", outputs={"table": "sales/table"})
        def clean(raw: Path, table: Path, *, month: str) -> dict[str, float]:
            import pandas

            rows = pandas.read_csv(raw / f"{month}.csv").dropna()
            rows.to_parquet(table / "rows.parquet")
            return {"rows": len(rows)}


        cleaned = clean(raw="volume://sales/raw@latest", month="{{ params.month }}")
        train(table=cleaned.versions["table"])

    It runs in its image, which has neither Airflow nor the Dag file; of muster it has `muster.signature` alone. So its
    body imports what it needs; names from outside are refused while the Dag is parsed, but builtins and what
    the Dag file imports from Python's standard library, such as ``Path``, which travel along.
    Modules beside the Dag file travel too: ``from sales import tables`` works inside the function.

    Its parameters: one named after each output (``Path``, an empty folder to write), one for each
    input (``Path``, or ``list[Path]`` for several versions), any others for params, as JSON values;
    ``checkpoints: Path``, if asked for, outlives a restart. It returns metrics or None.

    A call makes a task, and its arguments are the inputs and params; see :class:`Task`. It takes the
    keywords of a :class:`~muster.airflow.operators.job.JobOperator` but those that say what runs, and Airflow's
    own, all optional where the Dag's ``default_args`` has them.

    :raises SpecError: it cannot run in an image, or its parameters are not what is given; while the
        Dag is parsed, with the task, the line and what to do.
    """
    return decorate(python_callable, DecoratedJob, keywords)


@typed(_Keywords)
def gang(python_callable: Function | None = None, **keywords: Any) -> Any:
    """Make a function of the Dag file a gang: all replicas of it at once, or none.

    Like :func:`job`, with the launcher that PyTorch's own ``torchrun`` stands for.

    ::

        @gang(image="train", replicas=2, outputs={"model": "sales/model"}, resources=Resources(gpus=1))
        def train(table: Path, model: Path, *, epochs: int = 3) -> dict[str, float]:
            import torch.distributed as dist

            dist.init_process_group("gloo")
            ...
    """
    return decorate(python_callable, DecoratedGang, keywords)


def decorate(function: Function | None, operator: type[DecoratedJob], keywords: dict[str, Any]) -> Any:
    """Make a function, or the next one where None is given, a task of an operator with these keywords."""

    def decorator(given: Function) -> _Decorator:
        # the result of a job is one document, whatever the function's annotation says
        return _Decorator(
            function=given, operator_class=operator, multiple_outputs=False, kwargs=dict(keywords)
        )

    return decorator if function is None else decorator(function)
