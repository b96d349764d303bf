"""What a resume knows of the last run without Airflow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from muster.airflow.embedded.home import Kept
from muster.airflow.embedded.result import Deployed, RunResult, Stage

STAGE = Stage(
    task_id="train",
    state="success",
    seconds=7.0,
    overhead_seconds=1.0,
    job_id="a-1",
    versions={"model": ("volume://loop/model@1",)},
    metrics={"loss": 1.0},
)
RESULT = RunResult(
    dag_id="loop",
    run_id="muster__1",
    state="success",
    seconds=9.0,
    log="x",
    params={"lr": [0.1]},
    stages=(STAGE,),
)


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    dags = tmp_path / "dags"
    (dags / "loop").mkdir(parents=True)
    (dags / "loop" / "dag.py").write_text("a = 1")
    return Kept(file=tmp_path / "a new home" / "loop.kept", dags=dags)


def test_a_run_that_succeeded_is_remembered_with_every_stage_kept(kept: Kept) -> None:
    assert kept.recall() is None
    kept.end(RESULT, kept.begin())
    stage = replace(STAGE, kept=True, seconds=None, overhead_seconds=None)
    assert kept.recall() == replace(RESULT, stages=(stage,), seconds=0.0)


@pytest.mark.parametrize(
    "result",
    [
        replace(RESULT, state="failed"),
        replace(RESULT, only="train"),
        replace(RESULT, warnings=("train is kept, although …",)),
        replace(RESULT, deployments=(Deployed(name="d", url="u", version="v", curl="c"),)),
    ],
    ids=["failed", "one stage alone", "with warnings", "deployed"],
)
def test_what_has_to_be_looked_at_anew_is_not_remembered(result: RunResult, kept: Kept) -> None:
    kept.end(result, kept.begin())
    assert kept.recall() is None


def test_a_change_below_the_dags_before_or_after_the_end_of_the_run_counts(kept: Kept) -> None:
    code = kept.dags / "loop" / "dag.py"
    standing = kept.begin()
    code.write_text("a = 2")
    kept.end(RESULT, standing)
    assert kept.recall() is None
    kept.end(RESULT, kept.begin())
    assert kept.recall() is not None
    (kept.dags / "loop" / "__pycache__").mkdir()
    (kept.dags / "loop" / "__pycache__" / "dag.pyc").touch()
    assert kept.recall() is not None
    (kept.dags / "loop" / "more.py").touch()
    assert kept.recall() is None


def test_what_links_lead_to_counts(kept: Kept, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    code = elsewhere / "steps.py"
    code.write_text("a = 1")
    (kept.dags / "loop" / "steps.py").symlink_to(code)
    kept.end(RESULT, kept.begin())
    assert kept.recall() is not None
    code.write_text("a = 1.0")
    assert kept.recall() is None, "the file was edited where it lies"
    (kept.dags / "linked").symlink_to(elsewhere)
    kept.end(RESULT, kept.begin())
    assert kept.recall() is None, "what lies behind a linked folder is not looked at"


def test_a_run_that_begins_is_the_last_one(kept: Kept) -> None:
    kept.end(RESULT, kept.begin())
    older = kept.begin()
    assert kept.recall() is None
    kept.end(replace(RESULT, run_id="muster__2"), kept.begin())
    kept.end(RESULT, older)
    found = kept.recall()
    assert found is not None
    assert found.run_id == "muster__2", "one that ends after a newer one has begun is not the last"
