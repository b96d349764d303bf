"""A Dag with a stage of every kind that ``flights`` has, and with params like its own, whose jobs compute next to nothing."""

from __future__ import annotations

from pathlib import Path

from tests.serving import onnx_graph
from tests.site import Site

NAME = "small"
REQUEST = {"x": [2]}
SMOKE = '[{"name": "two", "inputs": {"x": [2]}}]'
SUITE = '{"expectations": [{"type": "expect_column_to_exist", "kwargs": {"column": "hour"}}]}'
DAG = """
    from datetime import timedelta

    from airflow.sdk import Param, dag

    from muster.airflow import (
        DeployOperator, GangOperator, GateOperator, JobOperator, Output, Resources, ValidateOperator
    )

    A_MONTH = {"type": "string", "pattern": r"^\\d{4}-(0[1-9]|1[0-2])$"}
    SMALL = Resources(cpus=0.2, memory_gib=0.5)

    @dag(
        schedule=None,
        params={
            "month": Param("2013-12", **A_MONTH),
            "test_from": Param("2013-10", **A_MONTH),
            "epochs": Param(4, type="integer", minimum=1),
        },
    )
    def small():
        made = JobOperator(
            task_id="features", image="python", entrypoint="small.steps:features", resources=SMALL,
            outputs={"features": Output(volume="small/features", partition="*")},
            params={"month": "{{ params.month }}"},
        )
        checked = ValidateOperator(
            task_id="validate", volume=made.versions["features"], suite="suite.json", resources=Resources(memory_gib=2)
        )
        model = GangOperator(
            task_id="train", image="python", entrypoint="small.steps:train", resources=SMALL, replicas=2,
            inputs={"test": "volume://small/features@>={{ params.test_from }},<={{ params.month }}"},
            outputs={"model": Output(volume="small/model", partition="{{ params.month }}")},
            params={"epochs": "{{ params.epochs }}"},
        )
        good = GateOperator(task_id="gate", volume=model.versions["model"], require={"auc": ">= 0.65"})
        DeployOperator(
            task_id="deploy", name="small", model=good.passed, smoke="smoke.json", steps=[5, 25, 100],
            hold=timedelta(seconds=1),
        )
        checked >> model

    small()
"""
STEPS = """
    from __future__ import annotations

    import os
    from pathlib import Path

    from small.onnx_graph import write_line

    def features(features: Path, month: str) -> None:
        for number in range(1, int(month[5:]) + 1):
            folder = features / f"{month[:4]}-{number:02}"
            folder.mkdir()
            (folder / "rows.csv").write_text("month,hour\\n" + f"{number},8\\n")

    def train(test: list[Path], model: Path, epochs: int) -> dict[str, float]:
        for epoch in range(1, epochs + 1):
            print(f"muster: epoch={epoch}/{epochs}")
        if os.environ["RANK"] == "0":
            write_line(model)
        return {"auc": 0.75, "months": len(test)}
"""


def write(site: Site) -> None:
    """Write the Dag and what lies beside it."""
    folder = site.write(NAME, DAG, steps=STEPS, onnx_graph=Path(onnx_graph.__file__).read_text())
    (folder / "smoke.json").write_text(SMOKE)
    (folder / "suite.json").write_text(SUITE)
