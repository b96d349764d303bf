"""The features of :mod:`flights.etl` over such rows, on DuckDB: ``python duck.py ROWS OUTPUT [SINCE MONTH]``, in the image `etl`.

By default it makes the whole year. It prints when it has read its first table and, at its end, its peak memory.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import ibis
from flights import etl


def main(rows: Path, output: Path, since: str = "2013-01", month: str = "2013-12") -> None:
    """Write ``OUTPUT/partition=YYYY-MM/…`` for each month from `since` to `month`."""
    with etl.database() as duckdb:
        names = etl.Raw.__dataclass_fields__
        raw = etl.Raw(
            **{name: duckdb.read_parquet(f"{rows}/{name}/*.parquet", table_name=name) for name in names}
        )
        print("first task", raw.flights.count().execute(), flush=True)
        sql = ibis.to_sql(etl.build(raw, since, month, store=etl.stored), dialect="duckdb")
        duckdb.raw_sql(
            f"COPY ({sql}) TO '{output}' (FORMAT parquet, COMPRESSION zstd, PARTITION_BY (partition))"
        )
    print("peak_mib", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
