"""Every way of writing a task in a Dag file: decorated, mapped over months, gathered again, and a gang of two."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

from airflow.sdk import Param, dag, task

from muster.airflow import JobOperator, Output, Resources, gang, job

SMALL: dict[str, Any] = {"image": "python", "resources": Resources(memory_gib=0.5)}


@job(outputs={"months": Output(volume="authored/month", partition="{{ task.job_params.month }}")})
def write(months: Path, *, month: str, rows: int) -> dict[str, float]:
    """One month of numbers."""
    import json

    (months / "rows.json").write_text(json.dumps([f"{month}-{row}" for row in range(rows)]))
    return {"rows": rows}


@job(outputs={"all": "authored/all"})
def gather(parts: list[Path], all: Path) -> dict[str, float]:  # noqa: A002 - a parameter is called like its output
    """All months in one, in the order of the map."""
    import json

    rows = [row for part in parts for row in json.loads((part / "rows.json").read_text())]
    (all / "rows.json").write_text(json.dumps(rows))
    return {"rows": len(rows)}


@gang(replicas=2, outputs={"model": "authored/model"})
def train(
    rows: Path, model: Path, *, epochs: int, options: dict[str, Any], note: str | None = "none"
) -> None:
    """Each rank writes what it was given."""
    import json
    import os

    rank = os.environ["RANK"]
    given = {"rows": len(json.loads((rows / "rows.json").read_text())), "epochs": epochs, "options": options}
    (model / f"rank-{rank}.json").write_text(json.dumps({**given, "note": note}))


@dag(
    schedule=None,
    start_date=datetime(2024, 1, 1),  # noqa: DTZ001 - Airflow's own way: the Dag's timezone
    catchup=False,
    params={
        "epochs": Param(2, type="integer", minimum=1, description="How often each row is seen"),
        "options": Param({"rate": 0.5, "deep": True, "layers": [64, 32]}, type="object"),
        "note": Param(None, type=["null", "string"]),
    },
    default_args={"muster": SMALL},
)
def authored() -> None:
    """Three months, gathered; a gang on the whole, and a job for each version."""
    months = write.partial(rows=2).expand(month=["2024-01", "2024-02", "2024-03"])
    gathered = gather(parts=months.versions["months"])
    train(
        rows=gathered.versions["all"],
        epochs="{{ params.epochs }}",
        options="{{ params.options }}",
        note="{{ params.note }}",
    )
    counted = JobOperator.partial(task_id="count", entrypoint="authored.steps:count").expand(
        inputs=[{"rows": gathered.versions["all"]}, {"rows": "authored/month@2024-01"}]
    )
    months.operator >> counted

    @task
    def say() -> str:
        """A task of Airflow's own, which the defaults of muster's do not disturb."""
        return "done"

    counted >> say()


authored()
