"""Dataclasses to JSON and back, checked on the way in.

A document crosses process and pod boundaries, and its two ends may be of different releases. Three
rules keep them together:

- A field that equals its default is not written. So a release that added the field and one that does
  not know it write the same bytes for documents that do not use it.
- An unknown field is refused by name: it asks for something that this release cannot do.
- The schema number moves only when the meaning of a field, or its default, changes.

A document that is read passes the same validation as an object that is constructed.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, TypeVar, Union

from muster.core.errors import SpecError

SCHEMA_VERSION = 1

_SCALARS = frozenset({str, int, bool})

T = TypeVar("T")


def dumps(value: object) -> str:
    """Write a dataclass as one line of JSON with its kind and schema version.

    :raises SpecError: where a number is not finite; Python would write ``NaN``, which is not JSON.
    """
    return _line(value, written(value))


def dumps_every_field(value: object) -> str:
    """Write a dataclass as :func:`dumps` does, but with all fields, also defaults: the input of digests.

    A field whose metadata says ``later`` is left out at its default: digests that were recorded before it was there stay.
    """
    return _line(value, _plain(value, _every_field))


def loads(kind: type[T], text: str | bytes) -> T:
    """Parse the output of :func:`dumps` and construct `kind`, which validates it.

    :raises SpecError: not JSON, nested too deeply, another kind, a newer schema, an unknown or missing field, a wrong type.
    """
    return build(kind, _document(kind, text))


def loads_field(kind: type, name: str, text: str | bytes) -> Any:
    """Parse one field of the output of :func:`dumps`, its default where it is not written: a tenth of the time.

    :raises SpecError: as :func:`loads`, though errors in other fields are not seen.
    """
    document = _document(kind, text)
    if name not in document:
        return _defaults(kind)[name]
    return _build(_hints(kind)[name], document[name], f"{kind.__name__}.{name}")


def parsed(text: str | bytes, *, what: str) -> dict[str, Any]:
    """Return an object of JSON that another program wrote. :param what: its name in errors.

    :raises SpecError: it is no object, nested too deeply, or holds text that no file can: half a surrogate pair.
    """
    try:
        document = json.loads(text)
        if (
            "\\u" in text or not text.isascii()
            if isinstance(text, str)
            else b"\\u" in text or b"\xed" in text
        ):
            json.dumps(document, ensure_ascii=False).encode()
    except ValueError as error:
        raise SpecError(f"{what}: not JSON ({error})") from error
    except RecursionError as error:  # the text may come from a pod, which is not trusted
        raise SpecError(f"{what}: nested too deeply") from error
    if not isinstance(document, dict):
        raise SpecError(f"{what}: expected a JSON object, found {type(document).__name__}")
    return document


def _document(kind: type, text: str | bytes) -> dict[str, Any]:
    document = parsed(text, what=kind.__name__)
    found, schema = document.pop("kind", None), document.pop("schema", None)
    if found != kind.__name__:
        raise SpecError(f"expected a {kind.__name__}, found {found!r}")
    if schema != SCHEMA_VERSION:
        raise SpecError(
            f"{kind.__name__} has schema {schema!r}, this muster reads {SCHEMA_VERSION}: "
            "run the same release of muster at both ends"
        )
    return document


def plain(value: Any) -> Any:
    """Return `value` with dataclasses, enums, mappings and tuples as JSON types, all fields written.

    :raises SpecError: a number that is not finite.
    """
    return _plain(value, lambda _, kind: _defaults(kind))


def written(value: Any) -> Any:
    """Return `value` as :func:`plain` does, without fields that equal their default: part of a document."""
    return _plain(value, _set_fields)


def build(kind: type[T], value: Any) -> T:
    """Construct `kind` from what :func:`written` returned, once it is parsed.

    :raises SpecError: an unknown or missing field, a wrong type.
    """
    return typing.cast("T", _build(kind, value, kind.__name__))


def _line(value: object, fields: Mapping[str, Any]) -> str:
    document = {"kind": type(value).__name__, "schema": SCHEMA_VERSION, **fields}
    return json.dumps(document, allow_nan=False, ensure_ascii=False, separators=(",", ":"))


def _plain(value: Any, fields_of: Callable[[Any, type], Iterable[str]]) -> Any:
    kind = type(value)
    if value is None or kind in _SCALARS:
        return value  # first, because a seal holds one for each file that a job wrote
    if dataclasses.is_dataclass(kind):
        return {name: _plain(getattr(value, name), fields_of) for name in fields_of(value, kind)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {key: _plain(item, fields_of) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, fields_of) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise SpecError(f"{value} is not a finite number and cannot be written as JSON")
    return value


def _every_field(value: Any, kind: type) -> Iterable[str]:
    later = {field.name for field in dataclasses.fields(kind) if field.metadata.get("later")}
    return [n for n, default in _defaults(kind).items() if n not in later or getattr(value, n) != default]


def _set_fields(value: Any, kind: type) -> Iterable[str]:
    return [name for name, default in _defaults(kind).items() if getattr(value, name) != default]


@cache
def _defaults(kind: type) -> dict[str, Any]:
    """The default of each field; ``MISSING``, which equals no value, where there is none."""
    return {
        field.name: field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        for field in dataclasses.fields(kind)
    }


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


@cache
def _shape(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    return typing.get_origin(hint), typing.get_args(hint)


def _build(hint: Any, value: Any, where: str) -> Any:
    if hint is Any or hint is object or (type(value) is hint and hint in _SCALARS):
        return value  # first, because a seal holds one for each file that a job wrote
    origin, arguments = _shape(hint)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        return _build(_only([a for a in arguments if a is not type(None)], value), value, where)
    if origin is tuple:
        _need(isinstance(value, list), where, "a list", value)
        return tuple(_build(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin is not None and issubclass(origin, Mapping):
        _need(isinstance(value, dict), where, "an object", value)
        kind = arguments[1]
        return (
            value
            if kind is Any
            else {key: _build(kind, item, f"{where}.{key}") for key, item in value.items()}
        )
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        try:
            return hint(value)
        except ValueError as error:
            choices = ", ".join(str(member.value) for member in hint)
            raise SpecError(f"{where}: found {value!r}, expected one of {choices}") from error
    if dataclasses.is_dataclass(hint):
        return _dataclass(typing.cast("type", hint), value, where)
    if hint is float:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        _need(is_number and abs(value) <= sys.float_info.max, where, "a finite number", value)
        return float(value)
    _need(type(value) is hint, where, getattr(hint, "__name__", str(hint)), value)
    return value


def _only(arguments: list[Any], value: Any) -> Any:
    for argument in arguments:
        if isinstance(argument, type) and type(value) is argument:
            return argument
    return arguments[0]


def _dataclass(kind: type, value: Any, where: str) -> Any:
    _need(isinstance(value, dict), where, "an object", value)
    hints = _hints(kind)
    unknown = value.keys() - hints.keys()
    if unknown:
        raise SpecError(f"{where}: unknown field {min(unknown)!r}; known are {', '.join(hints)}")
    fields = {
        name: item
        if type(item) is hints[name]
        and type(item) in _SCALARS  # first: the events of a search are tens of thousands
        else _build(hints[name], item, f"{where}.{name}")
        for name, item in value.items()
    }
    try:
        return kind(**fields)
    except TypeError as error:
        raise SpecError(f"{where}: {error}") from error


def _need(holds: bool, where: str, expected: str, found: Any) -> None:
    if not holds:
        raise SpecError(f"{where}: expected {expected}, found {found!r:.60}")
