"""The flights pipeline whose features a Spark cluster makes, a gang, from the same expressions."""

from __future__ import annotations

from functools import partial

from flights.pipeline import flights_dag
from muster.airflow import GangOperator, Resources

flights_dag(
    "flights_spark",
    partial(
        GangOperator,
        task_id="features",
        image="spark",
        launcher="spark",
        replicas=3,
        entrypoint="flights.spark:features",
        resources=Resources(cpus=1, memory_gib=2),
    ),
)
