"""Checks a job's inputs, outputs and params against its entrypoint's parameters, before the call."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from muster.core.data import CHECKPOINTS
from muster.core.errors import SpecError
from muster.core.replica import Replica
from muster.worker.params import UNKNOWN, convert, shown
from muster.worker.tracebacks import shorten

_KEYWORD = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def arguments(function: Callable[..., Any], replica: Replica) -> dict[str, Any]:
    """Return the keyword arguments for `function`: inputs and outputs as paths, params as annotated.

    :raises SpecError: the function lacks a name, needs one that the job does not give, or a value has
        another type; the message names the function, its place, and the known names.
    """
    spec = replica.spec
    taken = _Taken(function, str(replica.job_role.entrypoint), replica.code)
    taken.check(
        {
            **dict.fromkeys(spec.mounted, "input"),
            **dict.fromkeys(spec.staged, "output"),
            **dict.fromkeys(spec.params, "param"),
        }
    )
    values = {n: _input(taken, n, paths, spec.inputs[n].many) for n, paths in replica.inputs.items()}
    values.update({name: _path(taken, name, text) for name, text in replica.staging.items()})
    values.update({name: taken.convert(name, value) for name, value in spec.params.items()})
    if CHECKPOINTS in taken.parameters:
        values[CHECKPOINTS] = _path(taken, CHECKPOINTS, replica.checkpoints)
    return values


class _Taken:
    """The parameters of a function."""

    def __init__(self, function: Callable[..., Any], entrypoint: str, code: str | None) -> None:
        self.label = f"{entrypoint} ({_where(function, code)})"
        self._globals = getattr(inspect.unwrap(function), "__globals__", {})
        try:
            every = inspect.signature(function).parameters
        except (TypeError, ValueError) as error:
            raise SpecError(f"{self.label}: its parameters cannot be read ({error})") from error
        self.any_name = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in every.values())
        self.parameters = {name: p for name, p in every.items() if p.kind in _KEYWORD}
        for name, parameter in every.items():
            if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
                raise SpecError(
                    f"{self.label}: parameter {name!r} is positional-only; values are passed by name"
                )

    def check(self, given: Mapping[str, str]) -> None:
        """Refuse the first name that only the job or only the function has."""
        names = ", ".join(self.parameters) or "nothing"
        for name, kind in given.items():
            if name not in self.parameters and not self.any_name:
                raise SpecError(
                    f"{self.label}: the job gives {kind} {name!r}, but the function takes {names}; "
                    f"add the parameter or take the {kind} away"
                )
        for name, parameter in self.parameters.items():
            if parameter.default is parameter.empty and name not in given and name != CHECKPOINTS:
                raise SpecError(
                    f"{self.label}: parameter {name!r} is given by nothing; the job has "
                    f"{', '.join(f'{kind} {each}' for each, kind in given.items()) or 'no inputs, outputs or params'}; "
                    f"add it to inputs, outputs or params, or give it a default"
                )

    def hint(self, name: str) -> Any:
        """The annotation of a parameter, evaluated, or :data:`UNKNOWN`."""
        parameter = self.parameters.get(name)
        if parameter is None or parameter.annotation is parameter.empty:
            return UNKNOWN
        if not isinstance(parameter.annotation, str):
            return parameter.annotation
        try:
            return eval(parameter.annotation, self._globals)  # noqa: S307 - the author's own annotation
        except Exception:  # a name that only type checkers import; then the value is not converted
            return UNKNOWN

    def convert(self, name: str, value: Any) -> Any:
        return convert(f"param {name!r} of {self.label}", value, self.hint(name))


def _input(taken: _Taken, name: str, folders: Sequence[str], many: bool) -> Any:
    hint = taken.hint(name)
    takes_list = isinstance(typing.get_origin(hint) or hint, type) and issubclass(
        typing.get_origin(hint) or hint, (list, tuple, Sequence)
    )
    if many and hint is not UNKNOWN and (hint is str or not takes_list):
        raise SpecError(
            f"{taken.label}: input {name!r} is a list of versions ({len(folders)} here), but is annotated {shown(hint)}; "
            "annotate it list[Path], or name one version"
        )
    if not many and takes_list and hint is not str:
        raise SpecError(
            f"{taken.label}: input {name!r} is one version, but is annotated {shown(hint)}; "
            "annotate it Path, or name several versions, such as @*"
        )
    return [Path(folder) for folder in folders] if many else _path(taken, name, folders[0])


def _path(taken: _Taken, name: str, text: str) -> Any:
    return text if taken.hint(name) is str else Path(text)


def _where(function: Callable[..., Any], folder: str | None) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{shorten(code.co_filename, folder)}:{code.co_firstlineno}" if code else type(function).__name__
