"""Airflow is upgraded, or rolled back, while a task is deferred: the job goes on, and its task ends with it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.e2e.releases.machine import ROOT
from tests.e2e.releases.table import EARLIER, PAIRS, tried
from tests.site import Site
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.releases]

DAG = """
    from datetime import datetime
    from airflow.sdk import dag
    from muster.airflow import GangOperator, Resources

    @dag(schedule=None, start_date=datetime(2024, 1, 1))
    def upgraded():
        GangOperator(
            task_id="train", image="python", entrypoint="upgraded.steps:train", replicas=2,
            outputs={"out": "two/out"}, resources=Resources(cpus=0.2, memory_gib=0.2), retries=0,
        )

    upgraded()
"""
STEPS = """
    import os
    import time
    from pathlib import Path

    def train(out: Path) -> None:
        print("first-line", flush=True)
        while not Path("GO").exists():
            time.sleep(0.05)
        print("last-line", flush=True)
        (out / os.environ["MUSTER_RANK"]).write_text("done")
"""


@tried(
    "defers a task whose gang runs", "is Airflow's release from then on: resumes the task, with the same job"
)
@pytest.mark.parametrize(("begins", "goes_on"), PAIRS)
@pytest.mark.parametrize("earlier", EARLIER, indirect=True)
def test_a_task_that_one_deferred_is_resumed_by_the_other(
    earlier: Path, tmp_path: Path, begins: str, goes_on: str
) -> None:
    paths = {"earlier": str(earlier), "this": str(ROOT / "operators")}
    go = tmp_path / "go"
    with Site(tmp_path, PYTHONPATH=paths[begins]) as site:
        site.set("muster", inline_wait=0)
        # bfc7578d knows no other database; a run of an SQLite file can go on where own.cfg keeps it.
        site.set("database", sql_alchemy_conn=f"sqlite:///{site.home / 'up' / 'airflow.db'}")
        site.write("upgraded", DAG, steps=STEPS.replace("GO", str(go)))
        site.up(metrics=begins == "this")
        run = site.trigger("upgraded")
        assert until(lambda: site.task("upgraded", run, "train")["state"] == "deferred")
        assert until(lambda: "first-line" in site.task_log("upgraded", run, "train"))
        assert site.stop() == 0
        (job,) = site.jobs()
        site.environment["PYTHONPATH"] = paths[goes_on]
        site.up(metrics=goes_on == "this")
        go.touch()
        ends = ("success", "failed")
        assert until(lambda: site.run_state("upgraded", run) in ends, seconds=180)
        assert site.run_state("upgraded", run) == "success", site.task_log("upgraded", run, "train")
        told = site.task_log("upgraded", run, "train")
        assert told.count("last-line") == 2, told
        assert site.jobs() == [job]
        assert site.ask("volumes", "log", "two/out")[0]["record"]["job_id"] == job
        assert site.stop() == 0
