"""Checks a job's inputs, outputs and params against its entrypoint's parameters, before the call, and converts each value to its annotation."""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from muster.core.data import CHECKPOINTS
from muster.core.errors import SpecError
from muster.core.replica import Replica
from muster.worker.tracebacks import shorten

_WHOLE = re.compile(r"-?(0|[1-9][0-9]*)\Z")
_BOOLEANS = {"true": True, "True": True, "false": False, "False": False}
UNKNOWN = object()  # no annotation, or one that cannot be evaluated
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


def convert(what: str, value: Any, hint: Any) -> Any:
    """Return `value` as the type `hint`. Text is parsed as a number or date only where the hint asks for one.

    Jinja renders every field to text, so ``"5"`` is taken for an int parameter, but ``"5"`` for a
    parameter without annotation stays text, and ``5.0`` never becomes an int.

    :param what: the parameter's name in the message: ``param 'epochs' of flights.train:train``.
    :raises SpecError: the value is not of that type.
    """
    try:
        return _as(hint, value)
    except ValueError as error:
        raise SpecError(
            f"{what} is {value!r:.80} ({type(value).__name__}), but is annotated {shown(hint)}: "
            "give a value of that type or mend the annotation"
        ) from error


def shown(hint: Any) -> str:
    """Write an annotation as its author would."""
    return hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)


def _as(hint: Any, value: Any) -> Any:
    if hint is UNKNOWN or hint is Any or hint is object:
        return value
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _as(arguments[0], value)
    if origin is typing.Union or origin is types.UnionType:
        return _any_of(arguments, value)
    if origin is typing.Literal:
        return _one_of(arguments, value)
    if origin is not None:
        return _container(origin, arguments, value)
    return _plain(hint, value)


def _any_of(hints: Sequence[Any], value: Any) -> Any:
    for hint in sorted(hints, key=lambda hint: hint is not type(value)):  # the exact type first
        try:
            return _as(hint, value)
        except ValueError:
            continue
    raise ValueError


def _one_of(choices: Sequence[Any], value: Any) -> Any:
    for choice in choices:
        if type(choice) is type(value) and choice == value:
            return choice
    for choice in choices:
        if isinstance(choice, int) and isinstance(value, str) and value == str(choice):
            return choice
    raise ValueError


def _container(origin: Any, arguments: Sequence[Any], value: Any) -> Any:
    if not isinstance(origin, type):
        return value
    if isinstance(value, dict) and issubclass(origin, Mapping):
        return {key: _as(arguments[1], item) for key, item in value.items()}
    if not isinstance(value, list) or not issubclass(origin, Sequence):
        raise ValueError
    if origin is not tuple:
        return [_as(arguments[0], item) for item in value]
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return tuple(_as(arguments[0], item) for item in value)
    if len(arguments) != len(value):
        raise ValueError
    return tuple(_as(hint, item) for hint, item in zip(arguments, value, strict=True))


def _plain(hint: Any, value: Any) -> Any:
    if hint is None or hint is type(None):
        return _need(value is None, value)
    if not isinstance(hint, type):
        return value  # a TypeVar, a NewType: nothing to check the value against
    reader = _READERS.get(hint.__name__) if hint.__module__ in _MODULES else None
    if reader is not None:
        return reader(hint, value)
    if _is_enum(hint):
        return hint(value)
    return _need(isinstance(value, hint), value)


def _need(holds: bool, value: Any) -> Any:
    if not holds:
        raise ValueError
    return value


def _int(_hint: type, value: Any) -> int:
    _need(type(value) is int or (isinstance(value, str) and _WHOLE.match(value) is not None), value)
    return int(value)


def _float(_hint: type, value: Any) -> float:
    if type(value) not in (int, float, str) or value != str(value).strip():
        _need(type(value) in (int, float), value)
    try:
        number = float(value)
    except OverflowError as error:
        raise ValueError from error
    _need("_" not in str(value) and abs(number) != float("inf") and number == number, value)
    return number


def _bool(_hint: type, value: Any) -> bool:
    if isinstance(value, str) and value in _BOOLEANS:
        return _BOOLEANS[value]
    _need(type(value) is bool, value)
    return bool(value)


def _as_path(hint: type, value: Any) -> Any:
    _need(isinstance(value, str) and "\0" not in value, value)
    return hint(value)


def _from_iso(hint: Any, value: Any) -> Any:
    _need(isinstance(value, str), value)
    return hint.fromisoformat(value)


def _tuple(hint: type, value: Any) -> Any:
    _need(isinstance(value, list), value)
    return hint(value)


# by name, so that pathlib and datetime need not be imported
_MODULES = frozenset({"builtins", "pathlib", "pathlib._local", "datetime"})
_READERS: dict[str, Callable[[type, Any], Any]] = {
    "int": _int,
    "float": _float,
    "bool": _bool,
    "tuple": _tuple,
    "Path": _as_path,
    "PurePath": _as_path,
    "PosixPath": _as_path,
    "date": _from_iso,
    "datetime": _from_iso,
    "time": _from_iso,
}


def _is_enum(hint: type) -> bool:
    return any(base.__module__ == "enum" and base.__name__ == "Enum" for base in hint.__mro__)
