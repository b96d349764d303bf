"""The pipeline of `flights` with features made by a gang of Spark, from the same expressions; all stages after it are the same."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import Param, dag
from airflow.timetables.events import EventsTimetable  # airflow.sdk's cannot be serialised (3.3.2)

from muster.airflow import (
    DeployOperator,
    GangOperator,
    GateOperator,
    Output,
    Resources,
    ValidateOperator,
)

A_MONTH: dict[str, Any] = {"type": "string", "pattern": r"^\d{4}-(0[1-9]|1[0-2])$"}

# The data ends with 2013, and so does the schedule, which serves backfills. With new data each month: "@monthly".
MONTHS = EventsTimetable(
    [datetime(2013, month, 1, tzinfo=UTC) for month in range(1, 13)], description="the months of 2013"
)

# A manual run uses its Params. A scheduled or backfilled run tests on the month of its logical date, and trains on all
# months before.
MONTH = "{{ params.month if dag_run.run_type == 'manual' else ds[:7] }}"
TEST_FROM = "{{ params.test_from if dag_run.run_type == 'manual' else ds[:7] }}"


@dag(
    schedule=MONTHS,
    start_date=datetime(2013, 1, 1, tzinfo=UTC),
    catchup=False,
    params={
        "since": Param("2013-01", **A_MONTH, description="First month of the features"),
        "month": Param("2013-12", **A_MONTH, description="Last month of the features and of the test"),
        "test_from": Param(
            "2013-10", **A_MONTH, description="First month of the test; training uses the months before"
        ),
        "epochs": Param(4, type="integer", minimum=1, maximum=100),
        "seed": Param(7, type="integer", minimum=0),
    },
    default_args={"muster": {"cache": True}},
    tags=["muster", "example"],
)
def flights_spark() -> None:
    """Features, validation, training, gate, release in steps."""
    made = GangOperator(
        task_id="features",
        image="spark",
        launcher="spark",
        entrypoint="flights.spark:features",
        replicas=3,
        outputs={"features": Output(volume="flights-spark/features", partition="*")},
        params={"since": "{{ params.since }}", "month": MONTH},
        resources=Resources(cpus=1, memory_gib=2),
    )
    checked = ValidateOperator(
        task_id="validate",
        volume=made.versions["features"],
        suite="expectations.json",
        resources=Resources(cpus=1, memory_gib=2),
    )
    model = GangOperator(
        task_id="train",
        image="train",
        entrypoint="flights.train:train",
        replicas=2,
        launcher="torchrun",
        resources=Resources(cpus=1, memory_gib=4, gpus=1),
        inputs={
            "train": f"volume://flights-spark/features@<{TEST_FROM}",
            "test": f"volume://flights-spark/features@>={TEST_FROM},<={MONTH}",
        },
        outputs={"model": Output(volume="flights-spark/model", partition=MONTH)},
        params={"epochs": "{{ params.epochs }}", "seed": "{{ params.seed }}"},
        hang_timeout=timedelta(minutes=10),
    )
    good = GateOperator(
        task_id="gate",
        volume=model.versions["model"],
        # months differ more than models do, so a model is compared with the baseline on the same flights
        require={"auc": ">= 0.65, >= auc_baseline - 0.005", "ece": "<= ece_baseline + 0.02"},
        not_worse_than="champion",
        metric="auc",
        tolerance=0.005,
        evaluation="test",
        scorer="flights.assess:score",
        resources=Resources(cpus=1, memory_gib=2),
    )
    DeployOperator(
        task_id="deploy",
        name="flights-spark",
        model=good.passed,
        smoke="smoke.json",
        steps=[5, 25, 100],
        hold=timedelta(seconds=2),  # minutes or hours in production
    )

    checked >> model


flights_spark()
