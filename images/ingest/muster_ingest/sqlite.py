"""Reads a query of SQLite, where each value has a type of its own: what a column holds is asked before its rows are read.

A column has the type that holds all its values: whole numbers, fractions, bytes, or texts. Where it has none, and where there are whole numbers in a
column of fractions, the declaration decides. A number beside texts is written with all its digits.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pyarrow as pa

from muster_ingest.columns import advice
from muster_ingest.errors import IngestError

_AT_ONCE = 200
"""Columns that are asked about by one statement: SQLite's own limit is 2,000 values."""
_EXACT = 2**53
"""The most up to which a fraction of 8 bytes holds each whole number."""
_VIEW = "muster_query"


class _Held(NamedTuple):
    """What a column holds: its lowest and highest whole number, and whether there are fractions, texts, bytes."""

    low: Any
    high: Any
    fractions: int | None
    texts: int | None
    bytes: int | None


def opened(file: str) -> sqlite3.Connection:
    """Open a database to read it, and see it as it is now until it is closed."""
    connection = sqlite3.connect(
        f"file:{quote(str(Path(file).absolute()))}?mode=ro", uri=True, isolation_level=None
    )
    connection.execute("begin")
    return connection


def read(
    connection: sqlite3.Connection, statement: str, given: Collection[str], batch_rows: int
) -> pa.RecordBatchReader:
    """Read a statement as batches of Arrow.

    :param given: columns whose type is set: what no number holds exactly is read as text, and becomes that type.
    :raises IngestError: a column has values that no type of Parquet holds together.
    """
    connection.execute(f"create temp view {_VIEW} as {statement}")
    told = connection.execute("select name, type from pragma_table_info(?)", [_VIEW]).fetchall()
    held = [
        each
        for first in range(0, len(told), _AT_ONCE)
        for each in _held(connection, [name for name, _ in told[first : first + _AT_ONCE]])
    ]
    kinds = [
        _kind(name, declared.upper(), each, name in given)
        for (name, declared), each in zip(told, held, strict=True)
    ]
    schema = pa.schema([pa.field(name, kind) for (name, _), kind in zip(told, kinds, strict=True)])
    makes = [_MAKES.get(kind) for kind in kinds]
    cursor = connection.execute(f"select * from {_VIEW}")  # noqa: S608 - a name of its own

    def batches() -> Iterator[pa.RecordBatch]:
        while rows := cursor.fetchmany(batch_rows):
            columns = [
                pa.array(values if make is None else map(make, values), type=kind)
                for values, make, kind in zip(zip(*rows, strict=True), makes, kinds, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    return pa.RecordBatchReader.from_batches(schema, batches())


def _held(connection: sqlite3.Connection, names: list[str]) -> Iterator[_Held]:
    asked = []
    for name in names:
        quoted = '"' + name.replace('"', '""') + '"'
        whole = f"case when typeof({quoted}) = 'integer' then {quoted} end"
        asked += [f"min({whole})", f"max({whole})"]
        asked += [f"max(typeof({quoted}) = '{kind}')" for kind in ("real", "text", "blob")]
    found = connection.execute(f"select {', '.join(asked)} from {_VIEW}").fetchone()  # noqa: S608 - names, each quoted
    step = len(_Held._fields)
    return (_Held(*found[first : first + step]) for first in range(0, len(found), step))


def _kind(name: str, declared: str, held: _Held, given: bool) -> pa.DataType:
    if held.bytes and (held.high is not None or held.fractions or held.texts):
        raise IngestError(
            f"the query's column {name!r:.80} has bytes beside other values, which no column of Parquet holds together: cast it in the query, such "
            f"as cast({name:.80} as text)"
        )
    fits = held.high is None or (-_EXACT <= held.low <= held.high <= _EXACT)
    if held.texts or (given and held.fractions and not fits):
        return pa.string()
    if held.bytes:
        return pa.binary()
    if held.fractions and not fits:
        raise IngestError(
            f"the query's column {name!r:.80} has fractions beside whole numbers of more than 2^53, which a fraction does not hold to the last "
            f"digit: {advice(name)}"
        )
    if held.fractions:
        return pa.float64()
    by_name = _declared(declared)
    if held.high is None:
        return by_name
    return pa.float64() if by_name == pa.float64() and fits else pa.int64()


def _declared(declared: str) -> pa.DataType:
    """Return the type of a declaration, by SQLite's own rules of affinity."""
    if "INT" in declared:
        return pa.int64()
    if any(word in declared for word in ("CHAR", "CLOB", "TEXT", "DATE", "TIME", "JSON", "UUID")):
        return pa.string()
    if "BLOB" in declared:
        return pa.binary()
    if any(word in declared for word in ("REAL", "FLOA", "DOUB", "NUMERIC", "DECIMAL")):
        return pa.float64()
    return pa.int64() if "BOOL" in declared else pa.string()


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else repr(value)


def _fraction(value: Any) -> float | None:
    return None if value is None else float(value)


_MAKES: dict[pa.DataType, Callable[[Any], Any]] = {pa.string(): _text, pa.float64(): _fraction}
