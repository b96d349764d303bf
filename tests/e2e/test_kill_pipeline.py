"""kill -9 of everything at a random moment, then the same command again: it ends well, and nothing is left."""

from __future__ import annotations

import random
import shutil
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.e2e.author import Author
from tests.waiting import until

ROOT = Path(__file__).parents[2]

DAG = """\
from airflow.sdk import dag

from muster.airflow import GangOperator, JobOperator, Output


@dag
def chain():
    rows = JobOperator(
        task_id="rows", image="python", entrypoint="chain.steps:rows",
        outputs={"rows": Output(volume="chain/rows", partition="*")},
    )
    model = GangOperator(
        task_id="fit", image="python", entrypoint="chain.steps:fit", replicas=2, params={"steps": 8},
        inputs={"rows": rows.versions["rows"]}, outputs={"model": "chain/model"},
    )
    JobOperator(
        task_id="report", image="python", entrypoint="chain.steps:report",
        inputs={"model": model.versions["model"]}, outputs={"report": "chain/report"},
    )


chain()
"""
STEPS = """\
import os
import time
from pathlib import Path


def rows(rows: Path) -> None:
    for month in ("2013-01", "2013-02"):
        (rows / month).mkdir()
        (rows / month / "rows.txt").write_text(month * 100)
        time.sleep(0.1)


def fit(rows: list[Path], model: Path, checkpoints: Path, *, steps: int) -> dict[str, float]:
    state = checkpoints / f"{os.environ['RANK']}.txt"
    done = int(state.read_text()) if state.exists() else 0
    for step in range(done, steps):
        time.sleep(0.1)
        partial = state.with_suffix(".partial")
        partial.write_text(str(step + 1))
        partial.replace(state)
    if os.environ["RANK"] == "0":
        (model / "model.txt").write_text(str(sum(len((r / "rows.txt").read_text()) for r in rows)))
    return {"steps": steps}


def report(model: Path, report: Path) -> dict[str, float]:
    (report / "report.txt").write_text((model / "model.txt").read_text())
    return {"size": float((report / "report.txt").read_text())}
"""


@pytest.fixture
def chain(author: Author) -> Author:
    """A Dag of three stages that has run once."""
    author.write("chain", DAG, steps=STEPS)
    run(author, "chain")
    return author


@pytest.fixture
def flights(author: Author) -> Author:
    """The reference pipeline, which has run once."""
    shutil.copytree(ROOT / "dags", author.folder / "dags", ignore=shutil.ignore_patterns("__pycache__"))
    run(author, "flights")
    return author


def run(author: Author, dag: str) -> float:
    """Run it to a good end and return the seconds that took."""
    began = time.monotonic()
    assert author.start("run", dag).wait(timeout=300) == 0, author.log.read_text()[-4000:]
    return time.monotonic() - began


def check_store(author: Author) -> None:
    """Nothing is torn, and no job and no run has committed anything twice."""
    assert author.is_clean()
    for volume in author.ask("volumes", "ls"):
        records = [version["record"] for version in author.ask("volumes", "log", volume["volume"])]
        commits = Counter((record["job_id"], record["output"], record["partition"]) for record in records)
        assert max(commits.values()) == 1, commits
        per_run = Counter((record["origin"]["run_id"], record["partition"]) for record in records)
        assert max(per_run.values()) == 1, per_run


def killed_and_run_again(author: Author, dag: str, *, moment: float) -> None:
    running = author.start("run", dag)
    until(lambda: running.poll() is not None, seconds=moment)
    author.kill_everything()
    running.wait()
    assert author.processes() == {}
    run(author, dag)
    for name in author.ask("deployments", "ls"):
        assert author.muster("deployments", "retire", name["name"]).returncode == 0
    assert author.is_quiet(), author.processes()
    check_store(author)


@pytest.mark.slow
@pytest.mark.nightly  # airflow/test_interruption.py kills all of a run
def test_killed_once_and_run_again(chain: Author) -> None:
    killed_and_run_again(chain, "chain", moment=random.uniform(3, 8))


@pytest.mark.soak
def test_killed_at_ten_random_moments_and_run_again(chain: Author) -> None:
    whole = run(chain, "chain")
    for _ in range(10):
        killed_and_run_again(chain, "chain", moment=random.uniform(0.1, whole))


@pytest.mark.soak
def test_flights_killed_at_ten_random_moments_and_run_again(flights: Author) -> None:
    whole = run(flights, "flights")
    for _ in range(10):
        killed_and_run_again(flights, "flights", moment=random.uniform(0.1, whole))
