"""The features of :mod:`flights.etl` over such rows, on DuckDB: ``python duck.py ROWS OUTPUT [MONTHS]``, in the image `etl`.

MONTHS is the number of months of one query, 12 by default. The script prints when it has read its first table and, at its end, its peak memory.
"""

from __future__ import annotations

import resource
import sys
import tempfile
from pathlib import Path

import ibis
from flights import etl


def main(rows: Path, output: Path, months: int = 12) -> None:
    """Write ``OUTPUT/partition=YYYY-MM/…``. :param months: of one query; the fewer, the less is spilled and the more is read twice."""
    connection = ibis.duckdb.connect(memory_limit=etl.MEMORY, temp_directory=tempfile.gettempdir())
    names = etl.Raw.__dataclass_fields__
    raw = etl.Raw(
        **{name: connection.read_parquet(f"{rows}/{name}/*.parquet", table_name=name) for name in names}
    )
    print("first task", raw.flights.count().execute(), flush=True)
    for first in range(1, 13, months):
        last = min(first + months - 1, 12)
        built = etl.build(raw, f"2013-{first:02}", f"2013-{last:02}")
        sql = ibis.to_sql(built, dialect="duckdb")
        connection.raw_sql(
            f"COPY ({sql}) TO '{output}' (FORMAT parquet, COMPRESSION zstd, PARTITION_BY (partition), OVERWRITE_OR_IGNORE)"
        )
        print(f"muster: month={last}/12", flush=True)
    print("peak_mib", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:]))
