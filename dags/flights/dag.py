"""Will a flight out of New York arrive late? From raw rows to a deployed model, once a month."""

from __future__ import annotations

from functools import partial

from flights.pipeline import flights_dag
from muster.airflow import JobOperator, Resources

flights_dag(
    "flights",
    partial(
        JobOperator,
        task_id="features",
        image="etl",
        entrypoint="flights.etl:features",
        resources=Resources(cpus=2, memory_gib=4),
    ),
)
