"""The wheel alone, in an empty environment and an empty folder, runs a Dag of one's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.core.settings import Settings

ROOT = Path(__file__).parents[2]
DAG = """\
from airflow.sdk import dag

from muster.airflow import JobOperator


@dag
def mine():
    numbers = JobOperator(
        task_id="numbers", image="python", entrypoint="mine.steps:numbers", outputs={"numbers": "mine/numbers"}
    )
    JobOperator(
        task_id="total", image="python", entrypoint="mine.steps:total", inputs={"numbers": numbers.versions["numbers"]}
    )


mine()
"""
STEPS = """\
from pathlib import Path


def numbers(numbers: Path) -> None:
    (numbers / "all.txt").write_text("1 2 3")


def total(numbers: Path) -> dict[str, float]:
    return {"total": sum(map(int, (numbers / "all.txt").read_text().split()))}
"""


def uv(*arguments: str | Path) -> None:
    from uv import find_uv_bin

    subprocess.run([find_uv_bin(), *map(str, arguments)], check=True, capture_output=True, text=True)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder on the disk of uv's cache: packages are linked there, and copied to any other, 850 MB of them."""
    cache = Settings.load().cache
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix="wheel-") as folder:
        yield Path(folder)


@pytest.mark.slow
@pytest.mark.data  # it installs all packages; cli/test_readme.py runs a Dag of one's own
def test_a_dag_of_ones_own_runs_from_the_wheel_alone(folder: Path) -> None:
    uv(
        "build",
        "--wheel",
        "--no-build-isolation",
        "--python",
        sys.executable,
        "--out-dir",
        folder / "dist",
        ROOT,
    )
    (wheel,) = (folder / "dist").glob("*.whl")
    assert "muster/py.typed" in zipfile.ZipFile(wheel).namelist()
    uv("venv", "--quiet", "--python", sys.executable, folder / "venv")
    python = folder / "venv" / "bin" / "python"
    uv("pip", "install", "--quiet", "--python", python, "-c", ROOT / "requirements.txt", f"{wheel}[machine]")

    dags = folder / "empty" / "dags" / "mine"
    dags.mkdir(parents=True)
    (dags / "dag.py").write_text(DAG)
    (dags / "steps.py").write_text(STEPS)
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("AIRFLOW", "MUSTER_HOME", "PYTHON"))
    }

    def run(dag: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [folder / "venv" / "bin" / "muster", "run", dag, "--json"],
            cwd=folder / "empty",
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    ran = run("mine")
    assert ran.returncode == 0, ran.stderr[-3000:]
    result = json.loads(ran.stdout)
    states = {stage["task_id"]: stage["state"] for stage in result["stages"]}
    assert states == {"numbers": "success", "total": "success"}
    assert (folder / "empty" / ".muster" / "store").is_dir()

    # An operator whose extra is not installed is refused where the Dag is parsed.
    (dags.parent / "searching.py").write_text(
        "from airflow.sdk import dag\nfrom muster.airflow import SearchOperator\n"
    )
    (dags.parent / "mirroring.py").write_text(
        "from airflow.sdk import dag\nfrom muster.airflow import MirrorOperator\n"
    )
    refused = run("searching")
    assert refused.returncode == 1
    assert (
        "SearchOperator needs optuna, which is not installed here: pip install 'airflow-provider-muster[search]'"
        in refused.stderr
    )
    assert "MirrorOperator needs pyfastcdc" in refused.stderr
