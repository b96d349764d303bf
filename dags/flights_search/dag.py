"""Which network answers best whether a flight out of New York arrives late? A search, its gate and the release."""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import Param, dag

from muster.airflow import (
    DeployOperator,
    GateOperator,
    JobOperator,
    Output,
    Resources,
    SearchOperator,
    choice,
    integers,
    loguniform,
    uniform,
)


@dag(
    schedule=None,
    start_date=datetime(2013, 1, 1),  # noqa: DTZ001 - Airflow adds the Dag's timezone
    catchup=False,
    params={
        "month": Param("2013-12", type="string", description="Last month of the features and of the test"),
        "test_from": Param("2013-10", type="string", description="First month of the test"),
        "seed": Param(7, type="integer", minimum=0),
    },
    tags=["muster", "example"],
)
def flights_search() -> None:
    """Features, 27 networks of which the bad ones stop early, gate, release in steps."""
    features = JobOperator(
        task_id="features",
        image="etl",
        entrypoint="flights.etl:features",
        code="../flights",
        outputs={"features": Output(volume="flights/features", partition="*")},
        params={"since": "2013-01", "month": "{{ params.month }}"},
        resources=Resources(cpus=2, memory_gib=4),
        cache=True,
    )
    search = SearchOperator(
        task_id="search",
        image="train",
        entrypoint="flights.train:train",
        code="../flights",
        launcher="torchrun",
        resources=Resources(cpus=1, memory_gib=2, gpus=1),
        inputs={
            "train": "volume://flights/features@<{{ params.test_from }}",
            "test": "volume://flights/features@>={{ params.test_from }},<={{ params.month }}",
        },
        outputs={"model": Output(volume="flights/model", partition="{{ params.month }}")},
        params={"seed": "{{ params.seed }}"},
        env={
            "MLFLOW_EXPERIMENT_NAME": "flights"
        },  # where flights.tracking has its runs: they are below their trials
        space={
            "rate": loguniform(5e-4, 5e-2),
            "hidden": choice(32, 64, 128, 256),
            "embedding": integers(2, 16),
            "dropout": uniform(0.0, 0.5),
        },
        metric="auc_held",
        trials=27,
        rungs=(1, 3, 9),
        until="epochs",
        seed=7,
        results="flights/search",
    )
    good = GateOperator(
        task_id="gate",
        volume=search.versions["model"],
        require={"auc": ">= 0.65, >= auc_baseline - 0.005", "ece": "<= ece_baseline + 0.02"},
        not_worse_than="champion",
        metric="auc",
        tolerance=0.005,
        evaluation="test",
        scorer="flights.assess:score",
        code="../flights",
        resources=Resources(cpus=1, memory_gib=2),
    )
    DeployOperator(
        task_id="deploy",
        name="flights",
        model=good.passed,
        smoke="smoke.json",
        steps=[5, 25, 100],
        hold=timedelta(seconds=2),  # minutes or hours in production
    )

    features >> search


flights_search()
