"""The same on Spark: ``python on_spark.py ROWS OUTPUT [SINCE MONTH]``, in the image `spark`; who runs it says where the cluster is."""

from __future__ import annotations

import sys
from pathlib import Path

from flights.spark import PART_ROWS, rows, session_of, write


def main(source: Path, output: Path, since: str = "2013-01", month: str = "2013-12") -> None:
    """Write ``OUTPUT/YYYY-MM/…`` for each month from `since` to `month`."""
    session = session_of()
    tables = {
        name: session.read.parquet(f"{source}/{name}")
        for name in ("flights", "weather", "planes", "airports")
    }
    count = tables["flights"].count()
    print("first task", count, flush=True)
    parts = max(session.sparkContext.defaultParallelism, count // PART_ROWS)
    session.conf.set("spark.sql.shuffle.partitions", parts)
    for name, table in tables.items():
        table.createOrReplaceTempView(name)
    with rows(session, since, month) as found:
        write(found, output)
    session.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
