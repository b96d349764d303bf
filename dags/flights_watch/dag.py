"""A small model is deployed with a log of its requests, asked, and compared with its training; drift has it trained again."""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import Asset, Param, dag

from muster.airflow import (
    DeployOperator,
    DriftOperator,
    JobOperator,
    Output,
    RequestLog,
    Resources,
    ScoreOperator,
    SmokeRows,
)

NAME = "flights-watch"
SMALL = Resources(cpus=1, memory_gib=1)
START = datetime(2013, 1, 1)  # noqa: DTZ001 - Airflow adds the Dag's timezone


def rows(month: int, *, shift: bool | str = False) -> JobOperator:
    """Return the task that commits a month's flights."""
    return JobOperator(
        task_id=f"rows_{month}",
        image="etl",
        entrypoint="flights_watch.etl:rows",
        outputs={"rows": Output(volume=f"{NAME}/rows", partition=f"2013-{month:02}")},
        params={"month": month, "shift": shift},
        resources=SMALL,
    )


def train(versions: object) -> JobOperator:
    """Return the task that trains on some flights."""
    return JobOperator(
        task_id="train",
        image="train",
        entrypoint="flights_watch.fit:fit",
        inputs={"train": versions},
        outputs={"model": f"{NAME}/model"},
        resources=SMALL,
    )


def deploy(model: object, rows: object) -> DeployOperator:
    """Return the task that deploys a model, which has to answer some flights first, with a log of all its requests."""
    return DeployOperator(
        task_id="deploy",
        name=NAME,
        model=model,
        smoke=SmokeRows(rows, most=5, expect={"probability": {"min": 0.0, "max": 1.0}}),
        log=RequestLog(share=1.0),
        resources=SMALL,
    )


@dag(
    schedule=None,
    start_date=START,
    catchup=False,
    params={
        "shift": Param(
            True, type="boolean", description="Whether February is another: fewer airlines, longer flights"
        ),
        "requests": Param(200, type="integer", minimum=1, description="Requests of ten flights each"),
    },
    tags=["muster", "example"],
)
def flights_watch() -> None:
    """Train on January, deploy, ask about February, and compare."""
    january, february = rows(1), rows(2, shift="{{ params.shift }}")
    live = deploy(train(january.versions["rows"]).versions["model"], january.versions["rows"])
    asked = JobOperator(
        task_id="ask",
        image="etl",
        entrypoint="flights_watch.ask:ask",
        inputs={"rows": february.versions["rows"]},
        params={
            "url": "{{ ti.xcom_pull(task_ids='deploy')['url'] }}",
            "name": NAME,
            "requests": "{{ params.requests }}",
        },
        resources=SMALL,
    )
    (
        live
        >> asked
        >> DriftOperator(
            task_id="drift", deployment=NAME, window=timedelta(hours=1), training="train", resources=SMALL
        )
    )


@dag(
    schedule=[Asset(f"volume://{NAME}/drift")],
    start_date=START,
    catchup=False,
    tags=["muster", "example"],
)
def flights_watch_again() -> None:
    """Train on the flights that are flown now, deploy, and score all of them."""
    february = f"volume://{NAME}/rows@2013-02"
    live = deploy(train(february).versions["model"], february)
    live >> ScoreOperator(
        task_id="score",
        model=f"deployment://{NAME}",
        rows=february,
        outputs=f"{NAME}/scores",
        shards=2,
        keep=["flight"],
        resources=SMALL,
    )


flights_watch()
flights_watch_again()
