"""The installed command as a person runs it: processes of its own, real Airflow, real jobs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.e2e.author import WARM

from muster.cli.warm.place import waiting

Muster = Callable[..., subprocess.CompletedProcess[str]]

DAG = """
from airflow.sdk import dag

from muster.airflow import GangOperator, JobOperator


@dag(schedule=None, params={"count": 3})
def hello():
    rows = JobOperator(
        task_id="rows", image="bare", entrypoint="hello.work:rows",
        outputs={"rows": "hello/rows"}, params={"count": "{{ params.count }}"},
    )
    GangOperator(
        task_id="sums", image="bare", entrypoint="hello.work:sums", replicas=2,
        inputs={"rows": rows.versions["rows"]}, outputs={"sums": "hello/sums"},
    )


@dag(schedule=None)
def endless():
    JobOperator(task_id="wait", image="bare", entrypoint="hello.work:wait", outputs={"out": "hello/out"})


hello()
endless()
"""

WORK = """
import os
import signal
from pathlib import Path


def rows(rows: Path, *, count: int) -> dict[str, float]:
    print("[rank 3] [bold]is no markup")
    (rows / "rows.txt").write_text("\\n".join(map(str, range(count))))
    return {"rows": count}


def sums(rows: Path, sums: Path) -> dict[str, float]:
    numbers = [int(line) for line in (rows / "rows.txt").read_text().splitlines()]
    (sums / f"{os.environ['RANK']}.txt").write_text(str(sum(numbers)))
    return {"total": sum(numbers), "total_baseline": 1}


def wait(out: Path) -> None:
    print("waiting", flush=True)
    signal.pause()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a small Dag and an image that needs nothing; the process that waits in it is ended."""
    folder = tmp_path_factory.mktemp("author")
    hello = folder / "dags" / "hello"
    (hello / "images" / "bare").mkdir(parents=True)
    (hello / "images" / "bare" / "requirements.txt").write_text("")
    (hello / "dag.py").write_text(DAG)
    (hello / "work.py").write_text(WORK)
    yield folder
    for note in waiting(folder / ".muster"):
        os.kill(note.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    """What we were started with, but for a home: the folder's own .muster is used, this machine's cache."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("MUSTER_HOME", "AIRFLOW"))
    }
    return kept | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


@pytest.fixture(scope="module")
def warm(environment: dict[str, str]) -> dict[str, str]:
    """The same, with a process that waits for the next run of the folder."""
    return environment | WARM


@pytest.fixture(scope="module")
def muster(folder: Path, warm: dict[str, str]) -> Muster:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["muster", *words],
            cwd=folder,
            env=warm,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    return run
