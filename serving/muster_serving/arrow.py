"""A signature's columns as those of a table: the request log's rows and the scored ones have the same types."""

from __future__ import annotations

import pyarrow as pa

from muster_serving.column import DATATYPES, Column

COMPRESSION = "zstd"

_TYPES = {
    name: pa.string() if name == "BYTES" else pa.from_numpy_dtype(dtype) for name, dtype in DATATYPES.items()
}


def arrow_type(column: Column) -> pa.DataType:
    """Return the type of a column's values in a table."""
    plain = _TYPES[column.datatype]
    return pa.list_(plain) if column.tail else plain
