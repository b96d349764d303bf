"""Departures come as messages; the features of the last hours stay fresh, and the model that serves is asked with them."""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import Param, dag

from muster.airflow import (
    CompactOperator,
    DeployOperator,
    IngestOperator,
    JobOperator,
    Output,
    Resources,
    ScoreOperator,
)

NAME = "clicks"
TOPIC = "departures"
STREAM = f"kafka://{NAME}/{TOPIC}"
"""The topic, at the broker of the Airflow connection ``clicks``."""
SMALL = Resources(cpus=1, memory_gib=1)
START = datetime(2013, 1, 1)  # noqa: DTZ001 - Airflow adds the Dag's timezone


@dag(schedule="* * * * *", start_date=START, catchup=False, max_active_runs=1, tags=["muster", "example"])
def clicks() -> None:
    """Take the new messages, tell what the last hours say about the next one, and ask the model that serves."""
    raw = IngestOperator(task_id="raw", source=STREAM, volume=f"{NAME}/raw", resources=SMALL)
    recent = JobOperator(
        task_id="recent",
        image="etl",
        entrypoint="clicks.departures:recent",
        inputs={"departures": raw.versions["data"]},
        outputs={"recent": f"{NAME}/recent"},
        cache=True,
        resources=SMALL,
    )
    ScoreOperator(
        task_id="ask",
        model=f"deployment://{NAME}",
        rows=recent.versions["recent"],
        outputs=f"{NAME}/said",
        keep=["flight", "carrier", "origin"],
        cache=True,
        resources=SMALL,
    )


@dag(schedule="@hourly", start_date=START, catchup=False, max_active_runs=1, tags=["muster", "example"])
def clicks_compact() -> None:
    """Join the small files that the minutes have left."""
    # The ingest of the full minute may be first; a try between two of them is alone.
    retries = {"retries": 5, "retry_delay": timedelta(seconds=20)}
    CompactOperator(task_id="compact", volume=f"{NAME}/raw", keep=3, resources=SMALL, **retries)


@dag(schedule=None, start_date=START, catchup=False, tags=["muster", "example"])
def clicks_model() -> None:
    """Train on January, and deploy."""
    history = JobOperator(
        task_id="history",
        image="etl",
        entrypoint="clicks.departures:history",
        outputs={"history": Output(volume=f"{NAME}/history", partition="2013-01")},
        params={"month": 1},
        cache=True,
        resources=SMALL,
    )
    model = JobOperator(
        task_id="train",
        image="train",
        entrypoint="clicks.fit:fit",
        inputs={"history": history.versions["history"]},
        outputs={"model": f"{NAME}/model"},
        resources=SMALL,
    )
    DeployOperator(
        task_id="deploy", name=NAME, model=model.versions["model"], smoke="smoke.json", resources=SMALL
    )


@dag(
    schedule=None,
    start_date=START,
    catchup=False,
    params={
        "since": Param(
            0,
            type="integer",
            minimum=0,
            maximum=23,
            description="The hour of the day that the replay begins with",
        ),
        "until": Param(24, type="integer", minimum=1, maximum=24, description="The hour that it ends before"),
    },
    tags=["muster", "example"],
)
def clicks_replay() -> None:
    """Put the departures of the first of February into the topic."""
    day = JobOperator(
        task_id="day",
        image="etl",
        entrypoint="clicks.departures:day",
        outputs={"messages": Output(volume=f"{NAME}/messages", partition="2013-02-01")},
        params={"month": 2, "day": 1},
        cache=True,
        resources=SMALL,
    )
    JobOperator(
        task_id="replay",
        image="ingest",
        entrypoint="clicks.replay:replay",
        inputs={"messages": day.versions["messages"]},
        params={"topic": TOPIC, "since": "{{ params.since }}", "until": "{{ params.until }}"},
        secrets={"BROKER": f"connection:{NAME}#bootstrap.servers"},
        resources=SMALL,
    )


clicks()
clicks_compact()
clicks_model()
clicks_replay()
