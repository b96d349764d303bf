"""What the messages of a stream hold: JSON, Avro with a registry, or plain bytes. Each becomes a dictionary of columns."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from io import BytesIO
from typing import Any, Protocol

import pyarrow as pa

from muster_ingest.avro import Registry

Row = dict[str, Any] | None
"""A message's columns; None where it has no value (a tombstone)."""
_RAW = pa.struct([pa.field("value", pa.binary())])


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


_JSON = json.JSONDecoder(parse_constant=_no_constant)  # json.loads would make one for each message


class Unreadable(Exception):
    """A message that is not what the stream is said to hold; it says what was found."""


class Values(Protocol):
    """One way to read values."""

    def read(self, value: bytes) -> tuple[Row, Any]:
        """Return a message's columns, and what says their type. :raises Unreadable: it has none."""

    def kind(self, rows: Sequence[Row], hints: Sequence[Any]) -> Sequence[pa.StructType]:
        """Return types that, merged, hold all the rows. :raises pa.ArrowException: there is none."""


class Json:
    """Objects of JSON. Their types are seen from the values: whole numbers, fractions, texts, booleans, lists, objects."""

    def read(self, value: bytes) -> tuple[Row, Any]:
        """Parse one object."""
        try:
            found = _JSON.decode(value.decode())
        except (ValueError, RecursionError) as error:  # UnicodeDecodeError is one
            raise Unreadable(f"no JSON ({str(error)[:80]}), but {_shown(value)}") from None
        if not isinstance(found, dict):
            raise Unreadable(f"JSON, but no object: {_shown(value)}")
        return found, None

    def kind(self, rows: Sequence[Row], hints: Sequence[Any]) -> Sequence[pa.StructType]:  # noqa: ARG002
        """Infer it."""
        if not any(rows):
            return ()
        return (pa.infer_type(rows),)


class Raw:
    """Bytes as they are, in one column ``value``."""

    def read(self, value: bytes) -> tuple[Row, Any]:
        """Return them."""
        return {"value": value}, None

    def kind(self, rows: Sequence[Row], hints: Sequence[Any]) -> Sequence[pa.StructType]:  # noqa: ARG002
        """One column of bytes."""
        return (_RAW,)


class Avro:
    """Avro as Confluent's serializers write it: a zero, the schema's number in the registry in four bytes, the value."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def read(self, value: bytes) -> tuple[Row, Any]:
        """Decode one value by the schema that it names."""
        import fastavro.read

        fastavro.read.LOGICAL_READERS.pop("string-uuid", None)  # a UUID is a text, as its column is
        if len(value) < 5 or value[0] != 0:
            raise Unreadable(
                f"no Avro of a registry, which begins with 00 and a schema's number, but {_shown(value)}"
            )
        number = int.from_bytes(value[1:5], "big")
        schema = self._registry.schema(number)
        if schema is None:
            raise Unreadable(f"schema {number}, which the registry does not have")
        stream = BytesIO(value[5:])
        try:
            found = fastavro.schemaless_reader(stream, schema.parsed, None)
        except Exception as error:  # fastavro raises what its decoder happens to raise
            raise Unreadable(f"no value of schema {number} ({type(error).__name__}: {error!s:.80})") from None
        if stream.read(1):
            raise Unreadable(f"more bytes than a value of schema {number} has")
        return (found if schema.is_record else {"value": found}), number

    def kind(self, rows: Sequence[Row], hints: Sequence[Any]) -> Sequence[pa.StructType]:  # noqa: ARG002
        """Take it from the schemas that were named."""
        found = (self._registry.schema(number) for number in dict.fromkeys(hints) if number is not None)
        return [schema.kind for schema in found if schema is not None]


def values_of(name: str, registry: Callable[[], Registry]) -> Values:
    """Return the way of a name: ``json``, ``avro``, ``raw``."""
    if name == "avro":
        return Avro(registry())
    return Raw() if name == "raw" else Json()


def _shown(value: bytes) -> str:
    """Return the beginning of a value, for a message."""
    return f"{value[:40]!r}{'…' if len(value) > 40 else ''} ({len(value):,} bytes)"
