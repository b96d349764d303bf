"""Writes the rows of a query as Parquet, batch by batch: the whole result, or what is above the last version's watermark.

A version says in its listing what query it is of, and up to what value of the watermark's column. With a watermark the files of the last
version stay and the new rows come in one more; rows that were changed or deleted below it are not seen. Without one the whole result is read.
"""

from __future__ import annotations

import datetime
import decimal
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from muster_ingest import listing
from muster_ingest.columns import fitted
from muster_ingest.connection import Connection
from muster_ingest.databases import Database, is_numeric
from muster_ingest.errors import IngestError
from muster_ingest.listing import CARRIED, LISTING
from muster_ingest.schemas import MOST_DIGITS

FILE_ROWS = 4_000_000
_KEPT = (
    pa.types.is_null,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_string_view,
    pa.types.is_date,
    pa.types.is_timestamp,
)
"""The types of a watermark, each of which a statement can name, as a number or as a text."""


def read_query(
    base: Path | None, target: Path, what: Mapping[str, Any], connection: Connection
) -> dict[str, float]:
    """Do it; `target` stays empty where there is nothing new."""
    database = Database(what["source"], connection, float(what.get("patience_seconds") or 300.0))
    column = what.get("watermark")
    query = what["query"].strip().rstrip(";")
    given = what.get("types") or {}
    source = {
        "url": what["source"],
        "query": "sha256:" + hashlib.sha256(query.encode()).hexdigest(),
        "watermark": column,
        **({"types": given} if given else {}),
    }
    listing.empty(target)
    before = list(listing.read(base / LISTING, source)) if base is not None else []
    high = _high(base, source) if before and column else None
    kept = before if high is not None else []
    statement = _statement(query, column, high)
    print(
        f"reads {'what is above the watermark of the last version' if high is not None else 'the whole query'}",
        flush=True,
    )
    with database.opened() as read:
        batches = read(statement, given)
        if column in batches.schema.names and is_numeric(batches.schema.field(column).type):
            raise IngestError(
                f"the watermark's column {column!r:.80} has NaN, an infinity, or more than {MOST_DIGITS} digits, above which nothing comes: leave "
                "such rows out"
            )
        known = pq.read_schema(base / kept[-1][0]) if base is not None and kept else None
        watermark = _Watermark(column) if column else None
        batches = fitted(watermark.along(batches) if watermark else batches, given, known)
        written = _write(batches, target, listing.next_number(kept))
        newest = watermark.highest() if watermark else None
    rows = sum(each[3] for each in written)
    new = [(path, bytes_, digest) for path, bytes_, digest, _ in written]
    if high is not None and not rows:
        new = []
    nothing = new == before if high is None else not new
    if nothing and base is not None:
        listing.empty(target)
        print(f"{what['source']} holds nothing new", flush=True)
    else:
        if not new and not kept:
            raise IngestError(f"{what['source']}: the query has no column: need one that selects some")
        value = newest if newest is not None else high
        first = listing.first_line(source, high=value)
        lines = [listing.line(*each) for each in [*kept, *new]]
        (target / LISTING).write_text(first + "".join(lines), encoding="utf-8")
        if base is not None:
            (target / CARRIED).write_text("".join(f"{path}\n" for path, _, _ in kept), encoding="utf-8")
    return {
        "files": len(kept) + len(new),
        "bytes": sum(size for _, size, _ in [*kept, *new]),
        "rows": rows,
        "fetched": 0 if nothing else len(new),
        "kept": len(kept),
        "gone": 0,
    }


def _high(base: Path | None, source: Mapping[str, Any]) -> int | float | str | None:
    """Return the value up to which the last version goes; None where it does not tell."""
    if base is None:
        return None
    with (base / LISTING).open(encoding="utf-8") as file:
        said = listing.head(file.readline())
    return said.get("high") if said.get("source") == dict(source) else None


class _Watermark:
    """What rows have in the watermark's column, as the database has it: it could not compare a value of the keyword ``types`` with its own."""

    def __init__(self, column: str) -> None:
        self._column = column
        self._last: pa.Scalar | None = None
        self._nulls = self._rows = 0

    def along(self, batches: pa.RecordBatchReader) -> pa.RecordBatchReader:
        """Return the batches, and look at each when it is read. :raises IngestError: no listing can keep such values."""
        schema, column = batches.schema, self._column
        if column not in schema.names:
            raise IngestError(
                f"the query has no column {column!r:.80} for the watermark; it has {', '.join(schema.names)[:300]}"
            )
        kind = schema.field(column).type
        stored = kind.storage_type if isinstance(kind, pa.OpaqueType) else kind
        if not (isinstance(kind, pa.UuidType) or any(fits(stored) for fits in _KEPT)):
            raise IngestError(
                f"the watermark's column {column!r:.80} is of type {kind!s:.120}: need numbers, times, days or text; the query may cast it"
            )
        return pa.RecordBatchReader.from_batches(schema, map(self._look, batches))

    def _look(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        # The statement orders by it: the last one is the highest by the database's own order, which Arrow's is not (collations).
        values = batch.column(self._column)
        last = _last(values)
        self._last = self._last if last is None else last
        self._nulls += values.null_count
        self._rows += len(values)
        return batch

    def highest(self) -> int | float | str | None:
        """Return the highest value, once all rows are read; None where there are none. :raises IngestError: a row has none."""
        column = self._column
        if self._nulls:
            raise IngestError(
                f"the watermark's column {column!r:.80} is NULL in {self._nulls:,} of {self._rows:,} rows read, and no ingest could tell "
                f"whether it has such a row already: leave them out in the query (where {column:.80} is not null), or give them a value "
                f"(coalesce({column:.80}, ...))"
            )
        return None if self._last is None else _plain(self._last, column)


def _last(column: pa.Array) -> pa.Scalar | None:
    """Return the last value that is not null."""
    there = pc.indices_nonzero(column.is_valid())
    return column[there[-1].as_py()] if len(there) else None


def _plain(value: pa.Scalar, column: str) -> int | float | str:
    """Return a watermark as JSON can hold it, and as a statement can name it."""
    kind = value.type
    if pa.types.is_timestamp(kind) and kind.unit == "ns":  # more than Python's times hold
        return str(value.cast(pa.string()).as_py())
    try:
        plain = value.as_py()
    except (ValueError, OverflowError):  # 'infinity', or a year of five digits
        plain = float("inf")
    if isinstance(plain, datetime.datetime):
        return plain.isoformat(sep=" ")
    if isinstance(plain, datetime.date):
        return plain.isoformat()
    fraction = isinstance(plain, float | decimal.Decimal)
    if fraction and not decimal.Decimal(plain).is_finite():
        raise IngestError(
            f"the highest value of the watermark's column {column!r:.80} is {plain!s:.40}, above which nothing comes: leave such rows out"
        )
    if isinstance(plain, decimal.Decimal):
        return f"{plain:f}"
    return plain if isinstance(plain, int | float | str) else str(plain)


def _statement(query: str, column: str | None, high: int | float | str | None) -> str:
    if column is None:
        return query
    quoted = '"' + column.replace('"', '""') + '"'
    # A text is compared as the column's own type: a time, a day.
    literal = "'" + high.replace("'", "''") + "'" if isinstance(high, str) else repr(high)
    # A row without a value comes, too, and is refused: no other reading would ever find it.
    above = "" if high is None else f" where {quoted} > {literal} or {quoted} is null"
    return f"select * from (\n{query}\n) as whole{above} order by {quoted} nulls last"  # noqa: S608 - the author's own query


def _write(batches: pa.RecordBatchReader, target: Path, number: int) -> list[tuple[str, int, str, int]]:
    """Write the batches; return path, bytes, digest and rows of each file."""
    schema, written = batches.schema, []
    writer, path, rows = None, target, 0
    try:
        for batch in batches:
            if writer is None or rows >= FILE_ROWS:
                if writer is not None:
                    writer.close()
                    written.append(_file(path, target, rows))
                path, rows = target / f"part-{number + len(written):05}.parquet", 0
                writer = pq.ParquetWriter(path, schema, compression="zstd")
            writer.write_batch(batch)
            rows += batch.num_rows
        if writer is None and schema.names:
            path = target / f"part-{number:05}.parquet"
            writer = pq.ParquetWriter(path, schema, compression="zstd")
    finally:
        if writer is not None:
            writer.close()
    if writer is not None:
        written.append(_file(path, target, rows))
    return written


def _file(path: Path, target: Path, rows: int) -> tuple[str, int, str, int]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return str(path.relative_to(target)), path.stat().st_size, digest, rows
