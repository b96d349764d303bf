"""Entrypoints for each engine, as an author writes them. Their workers get `square` by its name, and so have to import this."""

from __future__ import annotations

import resource
import time
from pathlib import Path


def square(x: int) -> int:
    return x * x


def fail(x: int) -> int:
    raise ValueError(f"no rows for {x}")


def limit_mib(_: int) -> int:
    return resource.getrlimit(resource.RLIMIT_AS)[0] >> 20


def with_dask(made: Path) -> None:
    from dask.distributed import Client

    with Client() as client:
        client.wait_for_workers(2)
        write(made, sum(client.gather(client.map(square, range(40)))))


def with_ray(made: Path) -> None:
    import ray

    ray.init()
    task = ray.remote(square)
    write(made, sum(ray.get([task.remote(x) for x in range(40)])))


def with_spark(made: Path) -> None:
    from pyspark.sql import SparkSession, functions

    spark = SparkSession.builder.getOrCreate()
    squares = functions.udf(square, "long")
    context = spark.sparkContext
    while context.defaultParallelism < 4:  # cores: of two workers, each with one executor that takes its two
        time.sleep(0.1)
    assert context.parallelize([0], 1).map(limit_mib).first() == 768, "of each task's Python"
    total = spark.range(40, numPartitions=4).select(functions.sum(squares("id"))).first()[0]
    assert total == context.parallelize(range(40), 4).map(square).sum()
    spark.stop()
    write(made, total)


def fail_with_dask(made: Path) -> None:
    from dask.distributed import Client

    with Client() as client:
        write(made, client.submit(fail, 3).result())


def fail_with_ray(made: Path) -> None:
    import ray

    ray.init()
    write(made, ray.get(ray.remote(fail).remote(3)))


def fail_with_spark(made: Path) -> None:
    from pyspark.sql import SparkSession, functions

    rows = SparkSession.builder.getOrCreate().range(3, numPartitions=1)
    write(made, rows.select(functions.udf(fail, "long")("id")).collect()[0][0])


def write(made: Path, total: int) -> None:
    (made / "sum").write_text(str(total))
