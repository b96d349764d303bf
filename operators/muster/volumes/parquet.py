"""The schema of a Parquet file, read from its footer without a library.

Airflow's environment need not have pyarrow, and to say which columns a version holds takes only the footer: Thrift's
compact protocol, which ends the file. Any job may have written it, and Airflow's processes read it: what a footer can take
of memory and time is bounded before it is taken.

https://parquet.apache.org/docs/file-format/ and
https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from muster.core.errors import Corrupt
from muster.core.text import as_shown, one_line, shortened

_MAGIC = b"PAR1"
MOST_BYTES = 8 << 20
"""The largest footer that is read. One of 1,000 columns and 1,000 row groups has 100 MB, too much for a page."""
MOST_COLUMNS = 2000
"""The columns that a schema names; others are counted."""
NAME = 200
"""The characters of a column's name, those above it included."""

_PHYSICAL = ("boolean", "int32", "int64", "int96", "float", "double", "binary", "fixed")
_CONVERTED = {0: "string", 4: "enum", 5: "decimal", 6: "date", 9: "timestamp", 10: "timestamp", 19: "json"}
_LOGICAL = {
    1: "string",
    4: "enum",
    5: "decimal",
    6: "date",
    7: "time",
    8: "timestamp",
    12: "json",
    14: "uuid",
}
_DEEPEST = 32
_MOST_VALUES = 200_000  # of a schema: about ten for each column
_ROWS = 3
# What bytes that follow no schema come to when they are read as one.
_BROKEN = (
    IndexError,
    KeyError,
    TypeError,
    ValueError,
    AttributeError,
    OverflowError,
    struct.error,
    RecursionError,
)


@dataclass(frozen=True)
class ParquetColumn:
    """One column: its name (with those above it, ``a.b``), its type, and whether it may be null."""

    name: str
    type: str
    nullable: bool


@dataclass(frozen=True)
class Schema:
    """The first :data:`MOST_COLUMNS` columns of a file, how many it has, and the number of its rows."""

    columns: tuple[ParquetColumn, ...]
    rows: int
    in_all: int


def read_schema(path: Path) -> Schema:
    """Read the schema of a file. :raises Corrupt: it is no Parquet file that can be read."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - 8))
            tail = file.read(8)
            length = int.from_bytes(tail[:4], "little")
            if tail[4:] != _MAGIC or not 0 < length <= min(MOST_BYTES, size - 12):
                raise Corrupt(
                    f"{path.name} does not end as a Parquet file of less than {MOST_BYTES >> 20} MB of schema"
                )
            file.seek(size - 8 - length)
            footer = _Reader(file.read(length)).struct(
                last=_ROWS
            )  # what follows, and is most of it, is of row groups
        columns, in_all = _columns(footer[2])
        return Schema(columns=columns, rows=int(footer[_ROWS]), in_all=in_all)
    except _BROKEN as error:
        # A KeyError's own text is the key alone.
        why = f"it has no field {error}" if isinstance(error, KeyError) else str(error)
        raise Corrupt(f"the schema of {path.name} cannot be read: {one_line(why):.120}") from error


def _columns(elements: list[dict[int, Any]]) -> tuple[tuple[ParquetColumn, ...], int]:
    """Return the first leaves of a schema, which lists each element before its children, and how many leaves it has."""
    found: list[ParquetColumn] = []
    rest = iter(elements)
    leaves = 0

    def walk(above: str, count: int, nullable: bool) -> None:
        nonlocal leaves
        for _ in range(count):
            element = next(rest)
            # All names of a group together would be its name as often as it has columns.
            name = shortened(above + as_shown(element[4][: 4 * NAME].decode("utf-8", "replace")), NAME)
            optional = nullable or element.get(3) != 0  # 0: required
            if element.get(5):
                walk(f"{name}.", element[5], optional)
                continue
            leaves += 1
            if leaves <= MOST_COLUMNS:
                found.append(ParquetColumn(name, _type(element), optional))

    try:
        walk("", next(rest).get(5, 0), False)
    except StopIteration:
        raise Corrupt("the schema names more columns than it lists") from None
    return tuple(found), leaves


def _type(element: dict[int, Any]) -> str:
    physical = _PHYSICAL[element[1]]
    logical = next((_LOGICAL[key] for key in element.get(10, ()) if key in _LOGICAL), None)
    named = logical or _CONVERTED.get(element.get(6, -1))
    return f"{named}, {physical}" if named and physical not in ("binary", "int96") else named or physical


class _Reader:
    """Reads Thrift's compact protocol: a struct becomes its fields by number."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._depth = 0
        self._left = _MOST_VALUES

    def struct(self, *, last: int = -1) -> dict[int, Any]:
        """Read fields until their end, or until the field `last`."""
        self._depth += 1
        if self._depth > _DEEPEST:
            raise RecursionError("it is nested too deep")
        fields: dict[int, Any] = {}
        number = 0
        while header := self._byte():
            delta, kind = header >> 4, header & 15
            number = number + delta if delta else self._signed()
            fields[number] = self._value(kind)
            if number == last:
                break
        self._depth -= 1
        return fields

    def _value(self, kind: int) -> Any:
        self._left -= 1
        if self._left < 0:
            raise OverflowError(f"it has more than {_MOST_VALUES:,} values, which is some 20,000 columns")
        if kind in (1, 2):
            return kind == 1
        if kind == 3:
            return self._byte()
        if kind in (4, 5, 6):
            return self._signed()
        if kind == 7:
            return struct.unpack("<d", self._take(8))[0]
        if kind == 8:
            return self._take(self._unsigned())
        if kind in (9, 10):
            return self._list()
        if kind == 12:
            return self.struct()
        raise ValueError(f"there is no type {kind}")

    def _list(self) -> list[Any]:
        header = self._byte()
        kind, count = header & 15, header >> 4
        if count == 15:
            count = self._unsigned()
        if count > len(self._data) - self._at or count > self._left:
            raise IndexError(f"a list of {count:,} values is longer than the file, or than a schema")
        if kind in (1, 2):
            return [self._byte() == 1 for _ in range(count)]
        return [self._value(kind) for _ in range(count)]

    def _signed(self) -> int:
        number = self._unsigned()
        return (number >> 1) ^ -(number & 1)

    def _unsigned(self) -> int:
        number = shift = 0
        while True:
            byte = self._byte()
            number |= (byte & 127) << shift
            if byte < 128:
                return number
            shift += 7
            if shift > 63:
                raise IndexError("a number has too many bytes")

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _take(self, count: int) -> bytes:
        if count > len(self._data) - self._at:
            raise IndexError("a text is longer than the file")
        self._at += count
        return self._data[self._at - count : self._at]
