"""An image whose jobs run with a Python that is there: no environment, what is recorded, and what is kept."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.e2e.author import Author

from muster.core.settings import Settings

pytestmark = pytest.mark.slow

DAG = """\
from airflow.sdk import dag

from muster.airflow import JobOperator


@dag
def here():
    JobOperator(
        task_id="make", image="mine", command=["python", "-c", "open('{outputs.made}/f', 'w').write('x')"],
        outputs={"made": "here/made"}, cache=True,
    )


here()
"""


def own_cache(folder: Path) -> Path:
    """A cache without environments; Airflow's database is not migrated once more."""
    folder.mkdir()
    made = Settings.load().cache / "airflow"
    made.mkdir(parents=True, exist_ok=True)
    (folder / "airflow").symlink_to(made)
    return folder


@pytest.mark.nightly  # contract/test_backend.py runs a job with one that is there
def test_a_dag_runs_unchanged_with_and_without_an_interpreter(author: Author) -> None:
    author.write("here", DAG)
    image = author.folder / "dags" / "here" / "images" / "mine"
    image.mkdir(parents=True)
    (image / "requirements.txt").write_text("# nothing\n")
    author.environment["MUSTER_CACHE"] = str(own_cache(author.folder / "cache"))
    author.environment["MUSTER_INTERPRETER_MINE"] = "/nothing/python"
    refused = author.muster("run", "here")
    assert refused.returncode == 1
    assert "the interpreter of image mine, /nothing/python, is not there: set MUSTER_INTERPRETER_MINE" in (
        refused.stderr
    )
    assert author.jobs() == []

    author.environment["MUSTER_INTERPRETER_MINE"] = sys.executable
    ran = author.muster("run", "here")
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert f"[muster] image mine: runs with {sys.executable} (3." in ran.stdout + ran.stderr
    assert not list((author.folder / "cache" / "images").glob("mine-*")), "no environment is built"
    record = author.ask("volumes", "show", "here/made")["record"]
    assert record["interpreter"]["path"] == sys.executable
    assert record["image_digest"].startswith("b3:")
    kept = author.muster("run", "here")
    assert "kept here/made@1" in kept.stdout + kept.stderr

    del author.environment["MUSTER_INTERPRETER_MINE"]
    locked = author.muster("run", "here")
    assert locked.returncode == 0, locked.stderr[-3000:]
    said = locked.stdout + locked.stderr
    assert "not kept: interpreter of image mine: Python 3." in said
    assert "→ its lock (compared with here/made@1" in said
    assert author.ask("volumes", "show", "here/made")["record"]["interpreter"] is None
    assert author.is_quiet(), author.processes()
