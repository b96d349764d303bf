"""Writes the messages of a stream as Parquet, a row group at a time; a file ends where the columns grow."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from muster_ingest.errors import IngestError
from muster_ingest.schemas import SchemaChanged, fields_of, has_both, merged, paths_of, told, without_unknown
from muster_ingest.values import Row, Unreadable, Values

GROUP_ROWS, GROUP_BYTES = 65_536, 32 << 20
FILE_ROWS = 4_000_000
MOST_FIELDS = 2_000
"""Of a table's columns and the fields in them: each costs a cell in every row of a row group."""
APART = "_unreadable"
"""The folder of messages that are kept apart: what reads a folder of Parquet passes over names that begin so."""
PLACE = pa.schema(
    [
        pa.field("_partition", pa.int32(), nullable=False),
        pa.field("_offset", pa.int64(), nullable=False),
        pa.field("_timestamp", pa.timestamp("ms", "UTC")),
        pa.field("_key", pa.binary()),
    ]
)
"""Where a message was, and when: the columns beside those of its value."""
_APART_SCHEMA = pa.schema([*PLACE, pa.field("_value", pa.binary()), pa.field("_reason", pa.string())])
_ERRORS = (
    pa.ArrowException,
    OverflowError,
    ValueError,
    TypeError,
    AttributeError,
)  # what Arrow raises for values
File = tuple[str, int, str]
"""Path, size and digest."""


class Message(NamedTuple):
    """One message, as the broker has it; `millis` since 1970, None where it has no time."""

    partition: int
    offset: int
    millis: int | None
    key: bytes | None
    value: bytes | None


_Table = tuple[Sequence[Message], pa.StructArray]
"""Messages, and the columns of their values."""


class Parquet:
    """Files of one folder, one after another, each with one schema.

    :param number: of the first.
    """

    def __init__(self, target: Path, number: int, folder: str = "") -> None:
        self._target, self._next, self._folder = target, number, folder
        self._writer: pq.ParquetWriter | None = None
        self._path, self._rows = target, 0
        self.files: list[File] = []

    def write(self, table: pa.Table) -> None:
        """Write one row group."""
        if self._writer is not None and (self._writer.schema != table.schema or self._rows >= FILE_ROWS):
            self.close()
        if self._writer is None:
            self._path = self._target / self._folder / f"part-{self._next:05}.parquet"
            self._path.parent.mkdir(exist_ok=True)
            self._writer = pq.ParquetWriter(self._path, table.schema, compression="zstd")
            self._next, self._rows = self._next + 1, 0
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))
        self._rows += table.num_rows

    def close(self) -> None:
        """End the file under way."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
            with self._path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            self.files.append((str(self._path.relative_to(self._target)), self._path.stat().st_size, digest))


class Rows:
    """Takes messages, and writes them as rows whenever there are enough for a row group.

    :param known: the columns of the last version. `unreadable`: ``stop``, ``skip`` or ``keep``.
    :ivar count: rows that were taken. `unreadable`: messages that were none.
    """

    def __init__(
        self,
        source: str,
        values: Values,
        known: pa.StructType,
        *,
        unreadable: str,
        good: Parquet,
        apart: Parquet,
    ) -> None:
        self._source, self._values, self._known, self._way = source, values, known, unreadable
        self._good, self._apart = good, apart
        self._begin()
        self.count = self.unreadable = 0

    def _begin(self) -> None:
        self._messages: list[Message] = []
        self._rows: list[Row] = []
        self._hints: list[Any] = []
        self._bad: list[tuple[Message, str]] = []
        self._bytes = 0

    def take(self, message: Message) -> None:
        """Take one message. :raises IngestError: it is none of this stream, or changes its columns."""
        self._bytes += len(message.value or b"") + len(message.key or b"")
        try:
            row, hint = (None, None) if message.value is None else self._values.read(message.value)
        except Unreadable as error:
            self._put_apart(message, str(error))
        else:
            self._messages.append(message)
            self._rows.append(row)
            self._hints.append(hint)
        if len(self._rows) + len(self._bad) >= GROUP_ROWS or self._bytes >= GROUP_BYTES:
            self.flush()

    @property
    def taken(self) -> int:
        """How many rows were taken so far."""
        return self.count + len(self._rows)

    def close(self) -> list[File]:
        """Write what is left; return all files, those of messages kept apart first."""
        self.flush()
        self._good.close()
        self._apart.close()
        return [*self._apart.files, *self._good.files]

    def flush(self) -> None:
        """Write a row group of what was taken."""
        if self._rows:
            try:
                tables = [(self._messages, self._table(self._rows, self._hints))]
            except (SchemaChanged, Unreadable, *_ERRORS):
                if self._way == "stop":
                    self._refuse_grown()
                tables = self._tables_of_good()
            for messages, table in tables:
                self._good.write(_with_place(table, messages))
                self.count += len(messages)
        self.unreadable += len(self._bad)
        if self._bad and self._way == "keep":
            messages = [message for message, _ in self._bad]
            more = [[message.value for message in messages], [reason for _, reason in self._bad]]
            self._apart.write(pa.Table.from_arrays([*_place(messages), *more], schema=_APART_SCHEMA))
        self._begin()

    def _table(self, rows: Sequence[Row], hints: Sequence[Any]) -> pa.StructArray:
        """Return the columns of some rows, and know their types from now on."""
        array, self._known = self._typed(rows, hints, self._known)
        return array

    def _typed(
        self, rows: Sequence[Row], hints: Sequence[Any], known: pa.StructType
    ) -> tuple[pa.StructArray, pa.StructType]:
        """Return the columns of some rows, and the types that hold them and what is known."""
        kind = known
        for each in self._values.kind(rows, hints):
            _refuse_wide(each)
            kind = merged(kind, each)
        if kind != known:
            _refuse_wide(kind)
        self._refuse_own_names(kind)
        kind = without_unknown(kind)
        if has_both(rows, kind):
            raise pa.ArrowInvalid("booleans in a column of fractions")
        if kind != known:
            _refuse_unwritable(kind)
        return pa.array(rows, type=kind), kind

    def _tables_of_good(self) -> list[_Table]:
        """Put apart the messages for which the rows are no table: what does not fit the columns that are known is one. Return the others.

        They are several tables where one of them is too wide for others, such as fractions for large whole numbers.
        """
        parts = list(self._fitting(range(len(self._messages))))
        kept = [number for part, _ in parts for number in part]
        if not kept:
            return []
        try:
            whole = self._table(
                [self._rows[number] for number in kept], [self._hints[number] for number in kept]
            )
        except (SchemaChanged, Unreadable, *_ERRORS):
            return [(self._messages[part.start : part.stop], table) for part, table in parts]
        return [([self._messages[number] for number in kept], whole)]

    def _fitting(self, numbers: range) -> Iterator[tuple[range, pa.StructArray]]:
        """Yield the parts of some messages that fit, each as a table, found by halves: few do not."""
        some = slice(numbers.start, numbers.stop)
        try:
            table = self._table(self._rows[some], self._hints[some])
        except (SchemaChanged, Unreadable, *_ERRORS) as error:
            if len(numbers) == 1:
                self._put_apart_alone(numbers.start, error)
                return
            half = len(numbers) // 2
            yield from self._fitting(numbers[:half])
            yield from self._fitting(numbers[half:])
        else:
            yield numbers, table

    def _put_apart_alone(self, number: int, error: Exception) -> None:
        """Put one message apart, be it no row by itself, or none that fits the columns that are known."""
        message = self._messages[number]
        try:
            one = slice(number, number + 1)
            _, kind = self._typed(self._rows[one], self._hints[one], pa.struct([]))
        except Unreadable as alone:
            self._put_apart(message, str(alone))
        except (SchemaChanged, *_ERRORS) as alone:
            self._put_apart(message, f"no row of a table: {alone!s:.200}")
        else:
            if self._way == "stop":
                raise self._changed(message, self._known, kind, error) from None
            self._put_apart(
                message, f"columns that do not fit the others ({_column(error)}): {told(kind):.300}"
            )

    def _refuse_grown(self) -> None:
        """Refuse messages that together have more fields than a table. :raises IngestError: it names the first one that is too much."""
        fields, had = paths_of(self._known), set[pa.StructType]()
        for number, message in enumerate(self._messages):
            try:
                kinds = self._values.kind(self._rows[number : number + 1], self._hints[number : number + 1])
            except _ERRORS:  # no row by itself, which is told of it alone
                continue
            for kind in kinds:
                new = set() if kind in had or fields_of(kind) > MOST_FIELDS else paths_of(kind) - fields
                had.add(kind)
                fields |= new
                if new and len(fields) > MOST_FIELDS:
                    raise IngestError(
                        f"{self._source}: with {_named(message)} the columns have {len(fields):,} fields, more than the {MOST_FIELDS:,} of a table, "
                        "and nothing is committed: keys that are others in each message are no columns; ingest the topic as values='raw'"
                    )

    def _changed(
        self, message: Message, known: pa.StructType, kind: pa.StructType, error: Exception
    ) -> IngestError:
        return IngestError(
            f"{self._source}: {_named(message)} changes the columns ({_column(error)}), and nothing is committed. Known: {told(known)}. "
            f"This message: {told(kind)}. A new column and a wider number can be read with what there is; ingest another type into another volume, "
            "or pass over such messages with unreadable='skip' or 'keep'"
        )

    def _put_apart(self, message: Message, why: str) -> None:
        if self._way == "stop":
            raise IngestError(
                f"{self._source}: {_named(message)} cannot be read: found {why}. Nothing is committed; unreadable='skip' counts such "
                "messages, 'keep' puts them beside the rows"
            )
        self._bad.append((message, why))

    def _refuse_own_names(self, kind: pa.StructType) -> None:
        for name in PLACE.names:
            if kind.get_field_index(name) >= 0:
                raise Unreadable(f"a field {name!r}, which is a column of muster's own")


def known_columns(path: Path) -> pa.StructType:
    """Return the columns of the values in a file that an ingest wrote."""
    schema = pq.read_schema(path).remove_metadata()
    return pa.struct([field for field in schema if field.name not in PLACE.names])


def _column(error: Exception) -> str:
    return f"column {error.args[0]!r:.100}" if isinstance(error, SchemaChanged) else f"{error!s:.200}"


def _refuse_wide(kind: pa.StructType) -> None:
    """Refuse more fields than a table has. :raises Unreadable: there are."""
    count = fields_of(kind)
    if count > MOST_FIELDS:
        raise Unreadable(
            f"{count:,} fields, more than the {MOST_FIELDS:,} of a table (values='raw' takes any)"
        )


def _refuse_unwritable(kind: pa.StructType) -> None:
    """Refuse columns that no file of Parquet gives back, such as lists in lists in lists, a hundred times.

    :raises pa.ArrowInvalid: they cannot be written, or read again.
    """
    fields, file = [kind.field(number) for number in range(kind.num_fields)], pa.BufferOutputStream()
    try:
        pq.ParquetWriter(file, pa.schema(fields)).close()
        pq.read_schema(pa.BufferReader(file.getvalue()))
    except OSError as error:
        raise pa.ArrowInvalid(str(error)) from error


def _with_place(array: pa.StructArray, messages: Sequence[Message]) -> pa.Table:
    kind = array.type
    fields = [kind.field(number) for number in range(kind.num_fields)]
    return pa.Table.from_arrays([*array.flatten(), *_place(messages)], schema=pa.schema([*fields, *PLACE]))


def _place(messages: Sequence[Message]) -> list[pa.Array]:
    reads: list[Callable[[Message], Any]] = [
        lambda message: message.partition,
        lambda message: message.offset,
        lambda message: message.millis,
        lambda message: message.key,
    ]
    return [pa.array(map(read, messages), type=field.type) for read, field in zip(reads, PLACE, strict=True)]


def _named(message: Message) -> str:
    return f"the message at offset {message.offset:,} of partition {message.partition}"
