"""The features of :mod:`flights.etl` over such rows, on DuckDB: ``python duck.py ROWS OUTPUT``, in the image `etl`.

It says when its first table was read, and at its end how much memory it had at most.
"""

from __future__ import annotations

import resource
import sys
import tempfile
from pathlib import Path

import ibis
from flights import etl


def main(rows: Path, output: Path) -> None:
    """Write ``OUTPUT/partition=YYYY-MM/…``."""
    connection = ibis.duckdb.connect(memory_limit=etl.MEMORY, temp_directory=tempfile.gettempdir())
    names = etl.Raw.__dataclass_fields__
    raw = etl.Raw(
        **{name: connection.read_parquet(f"{rows}/{name}/*.parquet", table_name=name) for name in names}
    )
    print("first task", raw.flights.count().execute(), flush=True)
    built = etl.build(raw, "2013-01", "2013-12")
    sql = ibis.to_sql(built, dialect="duckdb")
    connection.raw_sql(
        f"COPY ({sql}) TO '{output}' (FORMAT parquet, COMPRESSION zstd, PARTITION_BY (partition), OVERWRITE_OR_IGNORE)"
    )
    print("peak_mib", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
