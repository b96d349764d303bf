"""Converts each JSON value to the type of its parameter's annotation, or refuses it by name."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from muster.core.errors import SpecError

_WHOLE = re.compile(r"-?(0|[1-9][0-9]*)\Z")
_BOOLEANS = {"true": True, "True": True, "false": False, "False": False}
UNKNOWN = object()  # no annotation, or one that cannot be evaluated


class _Wrong(Exception):
    """A value that is not of its type."""


def convert(what: str, value: Any, hint: Any) -> Any:
    """Return `value` as the type `hint`. Text is parsed as a number or date only where the hint asks for one.

    Jinja renders every field to text, so ``"5"`` is taken for an int parameter, but ``"5"`` for a
    parameter without annotation stays text, and ``5.0`` never becomes an int.

    :param what: the parameter's name in the message: ``param 'epochs' of flights.train:train``.
    :raises SpecError: the value is not of that type.
    """
    try:
        return _as(hint, value)
    except _Wrong as error:
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
        except _Wrong:
            continue
    raise _Wrong


def _one_of(choices: Sequence[Any], value: Any) -> Any:
    for choice in choices:
        if type(choice) is type(value) and choice == value:
            return choice
    for choice in choices:
        if isinstance(choice, int) and isinstance(value, str) and value == str(choice):
            return choice
    raise _Wrong


def _container(origin: Any, arguments: Sequence[Any], value: Any) -> Any:
    if not isinstance(origin, type):
        return value
    if isinstance(value, dict) and issubclass(origin, Mapping):
        return {key: _as(arguments[1], item) for key, item in value.items()}
    if not isinstance(value, list) or not issubclass(origin, Sequence):
        raise _Wrong
    if origin is not tuple:
        return [_as(arguments[0], item) for item in value]
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return tuple(_as(arguments[0], item) for item in value)
    if len(arguments) != len(value):
        raise _Wrong
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
        return _member(hint, value)
    return _need(isinstance(value, hint), value)


def _need(holds: bool, value: Any) -> Any:
    if not holds:
        raise _Wrong
    return value


def _int(_hint: type, value: Any) -> int:
    if isinstance(value, str) and _WHOLE.match(value):
        return int(value)
    _need(type(value) is int, value)
    return int(value)


def _float(_hint: type, value: Any) -> float:
    if type(value) not in (int, float, str) or value != str(value).strip():
        _need(type(value) in (int, float), value)
    try:
        number = float(value)
    except (ValueError, OverflowError) as error:
        raise _Wrong from error
    _need("_" not in str(value) and abs(number) != float("inf") and number == number, value)
    return number


def _bool(_hint: type, value: Any) -> bool:
    if isinstance(value, str) and value in _BOOLEANS:
        return _BOOLEANS[value]
    _need(type(value) is bool, value)
    return bool(value)


def _path(hint: type, value: Any) -> Any:
    _need(isinstance(value, str) and "\0" not in value, value)
    return hint(value)


def _from_iso(hint: Any, value: Any) -> Any:
    _need(isinstance(value, str), value)
    try:
        return hint.fromisoformat(value)
    except ValueError as error:
        raise _Wrong from error


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
    "Path": _path,
    "PurePath": _path,
    "PosixPath": _path,
    "date": _from_iso,
    "datetime": _from_iso,
    "time": _from_iso,
}


def _is_enum(hint: type) -> bool:
    return any(base.__module__ == "enum" and base.__name__ == "Enum" for base in hint.__mro__)


def _member(hint: Any, value: Any) -> Any:
    try:
        return hint(value)
    except ValueError as error:
        raise _Wrong from error
