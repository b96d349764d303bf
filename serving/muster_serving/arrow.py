"""A signature's columns as those of a table: the request log's rows and the scored ones have the same types."""

from __future__ import annotations

import pyarrow as pa

from muster_serving.column import Column

COMPRESSION = "zstd"

_TYPES = {
    "BOOL": pa.bool_(),
    "FP32": pa.float32(),
    "FP64": pa.float64(),
    "BYTES": pa.string(),
    **{
        f"{sign}INT{bits}": getattr(pa, f"{sign.lower()}int{bits}")()
        for sign in ("", "U")
        for bits in (8, 16, 32, 64)
    },
}


def arrow_type(column: Column) -> pa.DataType:
    """Return the type of a column's values in a table."""
    plain = _TYPES[column.datatype]
    return pa.list_(plain) if column.tail else plain
