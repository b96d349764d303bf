"""Each new version of flights/model gets a model card: figures, pictures and lineage, on CPU."""

from __future__ import annotations

from datetime import datetime

from airflow.sdk import Asset, Param, dag

from muster.airflow import JobOperator, Output, Resources, triggering


@dag(
    schedule=[Asset("volume://flights/model")],
    start_date=datetime(2013, 1, 1),  # noqa: DTZ001 - Airflow adds the Dag's timezone
    catchup=False,
    params={
        "model": Param(
            "volume://flights/model@latest",
            type="string",
            pattern=r"^volume://flights/model(@.+)?$",
            description="The model of the card, in a manual run; other runs take the versions that triggered them",
        ),
        "seed": Param(7, type="integer", minimum=0),
    },
    tags=["muster", "example"],
)
def flights_report() -> None:
    """Make one card for each model, committed as the partition of its model."""
    models = triggering("flights/model", otherwise="{{ params.model }}")
    JobOperator(
        task_id="card",
        image="report",
        entrypoint="flights_report.card:render",
        code="../flights",
        inputs={"models": models, "test": models.input("test")},
        outputs={"cards": Output(volume="flights/model-card", partition="*")},
        params={
            "lineage": models.lineage,
            "test_versions": models.input("test"),
            "seed": "{{ params.seed }}",
        },
        resources=Resources(cpus=1, memory_gib=2),
    )


flights_report()
