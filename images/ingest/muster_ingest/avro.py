"""A registry of Avro schemas (Confluent's ``GET /schemas/ids/N``), and what a schema is as columns."""

from __future__ import annotations

import base64
import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from muster_ingest.connection import Connection
from muster_ingest.errors import IngestError
from muster_ingest.schemas import MOST_DIGITS, decimal

URL, USER = "schema.registry.url", "schema.registry.basic.auth.user.info"
_SECONDS = 20.0
_PLAIN: dict[str, pa.DataType] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
    "fixed": pa.binary(),
}
_LOGICAL: dict[tuple[str, str], pa.DataType] = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "timestamp-millis"): pa.timestamp("ms", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
}
Ask = Callable[[str, Callable[[], bytes | None]], bytes | None]
"""Asks a question with patience."""


@dataclass(frozen=True)
class Schema:
    """One schema: parsed for the decoder, and as columns. One that is no record has the column ``value``."""

    parsed: Any
    kind: pa.StructType
    is_record: bool


class Registry:
    """The registry that a connection names; each schema is asked for once."""

    def __init__(self, connection: Connection, ask: Ask) -> None:
        self._connection, self._ask = connection, ask
        self._url = connection.text(URL).rstrip("/")
        self._known: dict[int, Schema | None] = {}
        if not self._url.startswith(("http://", "https://")):
            raise IngestError(
                f"{connection.named} names no registry of schemas: values='avro' needs the field {URL!r} in its extra"
            )

        if "@" in self._url.split("/")[2]:
            raise IngestError(
                f"{connection.named}: {URL!r} holds a user or a password: write them as {USER!r}"
            )

    def schema(self, number: int) -> Schema | None:
        """Return a schema; None where the registry has none of this number."""
        if number not in self._known:
            said = self._ask(f"schema {number}", lambda: self._get(f"/schemas/ids/{number}"))
            self._known[number] = None if said is None else self._read(number, self._told(number, said))
        return self._known[number]

    def _told(self, number: int, said: bytes) -> dict[str, Any]:
        try:
            told = json.loads(said)
        except ValueError:
            told = None
        if not isinstance(told, dict) or "schema" not in told:
            raise IngestError(
                f"{self._connection.named}: {URL!r} answers schema {number} with {said[:60]!r}, as no registry of schemas does"
            )
        return told

    def _get(self, path: str) -> bytes | None:
        request = urllib.request.Request(f"{self._url}{path}")  # noqa: S310 - http or https, as checked
        if self._connection.text(USER):
            word = base64.b64encode(self._connection.text(USER).encode()).decode()
            request.add_header("Authorization", f"Basic {word}")
        try:
            with urllib.request.urlopen(request, timeout=_SECONDS) as answer:  # noqa: S310
                return bytes(answer.read())
        except http.client.HTTPException as error:  # such as an answer that is cut off
            raise OSError(f"the registry's answer: {error!r:.120}") from None
        except urllib.error.HTTPError as error:
            with error:
                if error.code in (401, 403):
                    raise IngestError(
                        f"the registry of {self._connection.named} refuses it (HTTP {error.code}): see the field {USER!r} of its extra"
                    ) from None
                if error.code == 404 and b"40403" in error.read(2_000):  # the registry's own: no such schema
                    return None
                if error.code == 404:
                    raise IngestError(
                        f"{self._connection.named}: {URL!r} answers {path} with HTTP 404, as no registry of schemas does"
                    ) from None
                raise OSError(f"the registry says HTTP {error.code}") from None

    def _read(self, number: int, said: dict[str, Any]) -> Schema:
        import fastavro

        if said.get("schemaType", "AVRO") != "AVRO" or said.get("references"):
            raise IngestError(
                f"schema {number} of the registry is of type {said.get('schemaType', 'AVRO')}"
                f"{' with references' if said.get('references') else ''}: need Avro in one piece"
            )
        try:
            parsed = fastavro.parse_schema(json.loads(said["schema"]))
            kind = _Types(number).of(parsed)
        except (ValueError, KeyError, fastavro.schema.SchemaParseException) as error:
            raise IngestError(
                f"schema {number} of the registry cannot be read: {type(error).__name__}: {error!s:.200}"
            ) from None
        if pa.types.is_struct(kind):
            return Schema(parsed, kind, is_record=True)
        return Schema(parsed, pa.struct([pa.field("value", kind)]), is_record=False)


class _Types:
    """The types of one schema that fastavro has parsed: its named ones are used again by their full names."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._named: dict[str, pa.DataType | None] = {}

    def of(self, given: Any) -> pa.DataType:
        if isinstance(given, list):
            rest = [each for each in given if each not in ("null", {"type": "null"})]
            if len(rest) == 1:
                return self.of(rest[0])
            raise self._refused(f"a union of {json.dumps(rest):.200}")
        if isinstance(given, str):
            return self._by_name(given)
        kind = given["type"]
        if isinstance(kind, (dict, list)):
            return self.of(kind)
        logical = given.get("logicalType")
        if logical == "decimal":
            return self._keep(given, self._decimal(given["precision"], given.get("scale", 0)))
        if kind == "record":
            self._keep(given, None)
            return self._keep(
                given, pa.struct([pa.field(each["name"], self.of(each["type"])) for each in given["fields"]])
            )
        if kind == "array":
            return pa.list_(self.of(given["items"]))
        if kind == "map":
            return pa.map_(pa.string(), self.of(given["values"]))
        return self._keep(given, _LOGICAL.get((kind, logical or "")) or self._by_name(kind))

    def _decimal(self, digits: int, scale: int) -> pa.DataType:
        if digits > MOST_DIGITS:
            raise self._refused(f"a decimal of {digits} digits")
        return decimal(digits, scale)

    def _keep(self, given: dict[str, Any], kind: pa.DataType | None) -> pa.DataType | None:
        if "name" in given:
            self._named[str(given["name"])] = kind
        return kind

    def _by_name(self, name: str) -> pa.DataType:
        found = _PLAIN.get(name) or self._named.get(name)
        if found is None:
            raise self._refused(f"the type {name!r:.80} inside itself")
        return found

    def _refused(self, what: str) -> IngestError:
        return IngestError(
            f"schema {self._number} of the registry has {what}, which no column of Parquet holds"
        )
