"""The operators behind ``@task.job`` and ``@task.gang``: a function of the Dag file is the entrypoint."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from muster.airflow.authoring.entrypoints import check_parameters
from muster.airflow.authoring.keywords import refusing
from muster.airflow.authoring.references import VersionReference
from muster.airflow.authoring.source import FunctionSource, source_of
from muster.airflow.operators.job import FunctionOperator, JobOperator
from muster.airflow.upstream.internals import get_unique_task_id
from muster.core.address import SCHEME
from muster.core.errors import SpecError
from muster.core.job import Launcher, Role

if TYPE_CHECKING:
    from muster.airflow.authoring.code import Code, DagFolder
    from muster.core.settings import Settings

_PATHS = frozenset({"Path", "PurePath", "PosixPath", "PurePosixPath"})
_TAKEN = JobOperator.keywords.keys() - FunctionOperator.keywords.keys()  # they say what runs


class DecoratedJob(JobOperator):
    """Run a function of the Dag file as a job; :func:`muster.airflow.operators.decorators.job` says how it is written.

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
            task_id = get_unique_task_id(task_id, kwargs.get("dag"), kwargs.get("task_group"))
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
    """Run a function of the Dag file as a gang; :func:`muster.airflow.operators.decorators.gang` says how it is written."""

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
