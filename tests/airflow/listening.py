"""A site that writes OpenLineage's events into a file, and the Dags that emit them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.site import Site
from tests.waiting import until

HEAD = """
    import os
    from datetime import datetime, timedelta

    from airflow.sdk import dag

    from muster.airflow import DeployOperator, GateOperator, JobOperator, Resources, ValidateOperator

    SMALL = Resources(cpus=0.2, memory_gib=0.3)
"""
GOOD = (
    HEAD
    + """
    @dag(schedule=None, start_date=datetime(2024, 1, 1), default_args={"muster": {"cache": True}})
    def good():
        rows = JobOperator(task_id="rows", image="etl", entrypoint="good.steps:rows", params={"count": 3},
                           outputs={"rows": "good/rows"}, resources=SMALL)
        checked = ValidateOperator(task_id="check", volume=rows.versions["rows"], suite="suite.json")
        model = JobOperator(task_id="fit", image="python", entrypoint="good.steps:fit", inputs={"rows": checked.passed},
                            outputs={"model": "good/model"}, resources=SMALL)
        GateOperator(task_id="gate", volume=model.versions["model"], require={"auc": ">= 0.5"})
        JobOperator.partial(task_id="each", image="python", entrypoint="good.steps:each", resources=SMALL,
                            outputs={"out": "good/{{ task.job_params.name }}"}).expand(params=[{"name": "a"}, {"name": "b"}])

    good()
"""
)
BAD = (
    HEAD
    + """
    @dag(schedule=None, start_date=datetime(2024, 1, 1))
    def bad():
        rows = JobOperator(task_id="rows", image="etl", entrypoint="bad.steps:rows", params={"count": 3},
                           outputs={"rows": "bad/rows"}, resources=SMALL)
        ValidateOperator(task_id="check", volume=rows.versions["rows"], suite="suite.json", retries=0)
        JobOperator(task_id="breaks", image="python", entrypoint="bad.steps:breaks", inputs={"rows": rows.versions["rows"]},
                    outputs={"out": "bad/out"}, resources=SMALL, retries=0)

    bad()
"""
)
LATER = (
    HEAD
    + """
    os.environ["AIRFLOW__MUSTER__INLINE_WAIT"] = "0"

    @dag(schedule=None, start_date=datetime(2024, 1, 1), params={"gate": ""})
    def later():
        JobOperator(task_id="slow", image="python", entrypoint="later.steps:slow", params={"gate": "{{ params.gate }}"},
                    outputs={"out": "later/out"}, resources=SMALL)

    later()
"""
)
STEPS = """
    import time
    from pathlib import Path

    def rows(rows: Path, count: int) -> None:
        import duckdb
        duckdb.sql(f"copy (select i as number, 'x' as name from range({count}) t(i)) to '{rows}/part.parquet'")

    def fit(rows: Path, model: Path) -> dict[str, float]:
        (model / "x").write_text("x")
        return {"auc": 0.75}

    def each(out: Path, name: str) -> None:
        (out / "x").write_text(name)

    def breaks(rows: Path, out: Path) -> None:
        raise ValueError("the rows are wrong")

    def slow(out: Path, gate: str) -> None:
        while not Path(gate).exists():
            time.sleep(0.02)
        (out / "x").write_text("done")
"""
SUITE = '{"expectations": [{"type": "expect_column_values_to_be_between", "kwargs": {"column": "number", "max_value": %d}}]}'


class Listening(Site):
    """A site that writes its events into a file."""

    @property
    def file(self) -> Path:
        return self.folder / "events.jsonl"

    def events(self, run_id: str, task_id: str, kind: str) -> list[dict[str, Any]]:
        """The events of one kind of a task's instances in a run, in the order in which they came."""
        every = [json.loads(line) for line in self.file.read_text().splitlines()]
        return [
            each
            for each in every
            if each["job"]["name"].rpartition(".")[2] == task_id
            and each["run"]["facets"].get("airflow", {}).get("dagRun", {}).get("run_id") == run_id
            and each["eventType"] == kind
        ]

    def event(self, run_id: str, task_id: str, kind: str = "COMPLETE") -> dict[str, Any]:
        """The one event of a kind; a task's process emits it after Airflow shows the task's end."""
        assert until(lambda: self.events(run_id, task_id, kind)), f"no {kind} of {task_id}"
        (found,) = self.events(run_id, task_id, kind)
        return found
