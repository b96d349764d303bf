"""Which types the columns of a query have, and how its rows get them: those of the keyword ``types``, else those that hold the rows and the last
version.

No digit is lost: a value that its column's type does not hold ends the ingest, which names the column and the keyword.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from muster_ingest.errors import IngestError
from muster_ingest.schemas import SchemaChanged, decimal, merged

_DECIMAL = re.compile(r"decimal\((\d+), ?(\d+)\)")
_NAMED = {
    "bool": pa.bool_(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamp with time zone": pa.timestamp("us", "UTC"),
}


def type_of(name: str) -> pa.DataType:
    """Return the type of a name that the keyword ``types`` takes."""
    if found := _DECIMAL.fullmatch(name):
        return decimal(int(found[1]), int(found[2]))
    return _NAMED[name]


def advice(name: str) -> str:
    """Say how the type of a column is set."""
    return f"types={{{name[:80]!r}: …}} sets its type, such as 'string' or 'decimal(18,3)'"


def fitted(
    batches: pa.RecordBatchReader, given: Mapping[str, str], known: pa.Schema | None
) -> pa.RecordBatchReader:
    """Return the batches with the types that they are written with.

    :param given: names of types by column. `known`: the columns of the last version, beside whose files the rows come.
    :raises IngestError: a column cannot be written, or has a type that does not go with the last version; when they are read: a value does not
        fit.
    """
    if unknown := sorted(set(given) - set(batches.schema.names)):
        raise IngestError(
            f"types names the column {unknown[0]!r:.80}, which the query does not have; it has {', '.join(batches.schema.names):.300}"
        )
    fields, changed = list[pa.Field](), set[str]()
    for field in batches.schema:
        kind = type_of(given[field.name]) if field.name in given else _plain(field.type)
        if known is not None and field.name in known.names:
            had = known.field(field.name).type
            try:
                kind = _wider(had, kind)
            except SchemaChanged:
                if not (
                    pa.types.is_decimal(kind) and _stored(had) == pa.string()
                ):  # a decimal may be text as before
                    changed.add(field.name)
                kind = _plain(had)  # as a column of nulls alone can be written, whatever its type is now
        fields.append(field.with_type(kind))
    fields += [field for field in known or () if field.name not in batches.schema.names]
    for field in fields:
        _refuse_unwritable(field)
    schema = pa.schema(fields)
    return pa.RecordBatchReader.from_batches(schema, (_fitted(batch, schema, changed) for batch in batches))


def _wider(had: pa.DataType, new: pa.DataType) -> pa.DataType:
    both = merged(*(pa.struct([pa.field("value", _stored(kind))]) for kind in (had, new)))
    return had if both.field(0).type == _stored(had) else both.field(0).type


def _refuse_unwritable(field: pa.Field) -> None:
    try:
        pq.ParquetWriter(pa.BufferOutputStream(), pa.schema([field])).close()
    except (pa.ArrowException, OSError):
        raise IngestError(
            f"the query's column {field.name!r:.80} is of type {field.type!s:.120}, which no file of Parquet holds: cast it in the query, such as "
            f"cast({field.name:.80} as text)"
        ) from None


def _fitted(batch: pa.RecordBatch, schema: pa.Schema, changed: set[str]) -> pa.RecordBatch:
    names = batch.schema.names
    columns = [_column(column, schema.field(number), changed) for number, column in enumerate(batch.columns)]
    gone = [pa.nulls(batch.num_rows, field.type) for field in list(schema)[len(names) :]]
    return pa.RecordBatch.from_arrays([*columns, *gone], schema=schema)


def _column(column: pa.Array, field: pa.Field, changed: set[str]) -> pa.Array:
    if isinstance(column, pa.ExtensionArray) and column.type != field.type:
        column = column.storage
    if column.type == field.type:
        return column
    if column.null_count == len(column):
        return pa.nulls(len(column), field.type)
    if field.name in changed:
        raise IngestError(
            f"the query's column {field.name!r:.80} is of type {column.type!s:.120}, and was {field.type!s:.120} in the last version, beside which "
            f"its new rows come: cast it in the query, or ingest it into another volume; {advice(field.name)} and has the whole query read again"
        )
    try:
        if pa.types.is_floating(column.type) and pa.types.is_decimal(field.type):
            column = column.cast(pa.string())  # Arrow would round a fraction to the digits that there are
        cast = column.cast(field.type)
        kind = column.type
        if pa.types.is_timestamp(kind) and kind.tz:
            column = pc.local_timestamp(column)  # a day is one of the column's own zone
        coarse = (pa.types.is_date(field.type) and pa.types.is_temporal(kind)) or (
            pa.types.is_boolean(field.type) and (pa.types.is_integer(kind) or pa.types.is_floating(kind))
        )
        if coarse and not cast.cast(column.type).equals(column):
            # which Arrow would leave out: a time of day, all of a number but whether it is 0
            raise ValueError("it is more")
        return cast
    except (pa.ArrowException, ValueError) as error:
        raise IngestError(
            f"the query's column {field.name!r:.80} has a value that is no {field.type!s:.120} ({error!s:.200}): {advice(field.name)}"
        ) from None


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return a type that readers know: what Arrow has no type for comes as text, with the name of the database's type."""
    return kind.storage_type if isinstance(kind, pa.OpaqueType) else kind


def _stored(kind: pa.DataType) -> pa.DataType:
    """Return a type as a reader sees it in any of its forms."""
    if isinstance(kind, pa.BaseExtensionType):
        return kind.storage_type
    if pa.types.is_dictionary(kind):
        return kind.value_type
    if pa.types.is_timestamp(kind) and kind.tz:
        return pa.timestamp(kind.unit, "UTC")
    return pa.string() if pa.types.is_large_string(kind) or pa.types.is_string_view(kind) else kind
