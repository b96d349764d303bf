"""From rows to a prediction: rows → train → gate → deploy. `muster run starter` runs it here, `muster up` on a schedule."""

from __future__ import annotations

from airflow.sdk import Param, dag

from muster.airflow import DeployOperator, GateOperator, JobOperator, Resources

SMALL = Resources(cpus=1, memory_gib=1)


@dag(
    schedule=None,  # or "@monthly" with a start_date
    params={"count": Param(500, type="integer", minimum=50, description="Number of random rows")},
)
def starter() -> None:
    """Every stage is a function of work.py; its parameters are the names of inputs, outputs and params here."""
    rows = JobOperator(
        task_id="rows",
        image="starter",
        entrypoint="starter.work:rows",
        params={"count": "{{ params.count }}"},
        outputs={"rows": "starter/rows"},
        resources=SMALL,
    )
    model = JobOperator(
        task_id="train",
        image="starter",
        entrypoint="starter.work:train",
        inputs={"rows": rows.versions["rows"]},
        outputs={"model": "starter/model"},
        resources=SMALL,
    )
    good = GateOperator(
        task_id="gate", volume=model.versions["model"], require={"error": "<= error_baseline"}
    )
    DeployOperator(task_id="deploy", name="starter", model=good.passed, smoke="smoke.json")


starter()
