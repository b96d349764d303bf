"""An outsider's extension in a Dag and on the page; each in a process of its own, which finds it as an installed one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.outsider.install import install

pytestmark = pytest.mark.slow
DAG = """
from airflow.sdk import dag
from muster.airflow import CountOperator


@dag(schedule=None)
def counted():
    CountOperator(task_id="count", volume="some/volume")


counted()
"""
PAGE = """
from fastapi.testclient import TestClient
from muster.airflow.page.access import assets, plugins
from muster.ext.page.app import create_app

app = create_app()
app.dependency_overrides = {each.dependency: lambda: None for each in (assets, plugins)}
client = TestClient(app)
print(client.get("/api/counts").json(), client.get("/static/counts/counts.js").status_code)
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """That of a folder with a Dag, where the extension is installed."""
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "counted.py").write_text(DAG)
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("MUSTER_HOME", "AIRFLOW"))
    }
    outside = str(install(tmp_path / "outside"))
    home = {
        "MUSTER_HOME": str(tmp_path / ".muster"),
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "MUSTER_NO_WARM": "1",
    }
    return {**kept, **home, "PYTHONPATH": outside}


def typed(folder: Path, environment: dict[str, str], *words: str) -> str:
    """Run Python with these words; return what it printed."""
    command = [sys.executable, *words]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_its_operator_runs_and_its_tab_answers(tmp_path: Path, environment: dict[str, str]) -> None:
    version = tmp_path / "rows.csv"
    version.write_text("a")
    typed(tmp_path, environment, "-m", "muster", "volumes", "put", str(version), "some/volume")
    typed(tmp_path, environment, "-m", "muster", "run", "counted")
    assert "some/volume has 1 versions" in typed(
        tmp_path, environment, "-m", "muster", "runs", "show", "counted"
    )
    assert typed(tmp_path, environment, "-c", PAGE).splitlines()[-1] == "{'some/volume': 1} 200"
