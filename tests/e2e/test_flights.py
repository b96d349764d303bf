"""The reference pipeline as a person runs it: from real rows to a served prediction, broken, mended, resumed."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
MUSTER = Path(sys.executable).with_name("muster")
STAGES = ["features", "validate", "train", "gate", "deploy"]


class Checkout:
    """A folder with the pipeline's Dag and a home of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(ROOT / "dags", folder / "dags", ignore=shutil.ignore_patterns("__pycache__"))
        self.environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "PYTEST"))
        } | {"MUSTER_HOME": str(folder / ".muster")}

    def muster(self, *words: str, code: int = 0) -> Any:
        ran = subprocess.run(
            [MUSTER, *words],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == code, ran.stdout[-2000:] + ran.stderr[-6000:]
        return json.loads(ran.stdout) if "--json" in words else ran.stdout

    def jobs_of(self, stage: str) -> list[str]:
        return [
            job["job_id"]
            for job in self.muster("jobs", "ls", "--json")
            if f"flights-{stage}" in job["job_id"]
        ]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkout]:
    made = Checkout(tmp_path_factory.mktemp("flights"))
    yield made
    made.muster("deployments", "retire", "flights")


@pytest.fixture(scope="module")
def whole(checkout: Checkout) -> Any:
    return checkout.muster("run", "flights", "--json")


def by_name(result: Any) -> dict[str, Any]:
    return {stage["task_id"]: stage for stage in result["stages"]}


@pytest.mark.slow
def test_every_stage_succeeds_and_says_what_it_left(whole: Any) -> None:
    stages = by_name(whole)
    assert list(stages) == STAGES
    assert {stage["state"] for stage in stages.values()} == {"success"}
    assert len(stages["features"]["versions"]["features"]) == 12
    assert all(stage["seconds"] > 0 for stage in stages.values())
    assert stages["train"]["overhead_seconds"] is not None


@pytest.mark.slow
def test_the_model_is_one_that_a_practitioner_would_accept(whole: Any) -> None:
    metrics = by_name(whole)["train"]["metrics"]
    assert metrics["auc"] >= 0.72
    assert metrics["auc"] > metrics["auc_baseline"]
    assert metrics["ece"] < 0.05
    assert metrics["brier"] < metrics["brier_baseline"]
    assert metrics["onnx_difference"] < 1e-4


@pytest.mark.slow
def test_the_curl_line_answers(whole: Any) -> None:
    (deployment,) = whole["deployments"]
    answered = subprocess.run(shlex.split(deployment["curl"]), capture_output=True, text=True, check=True)
    (probability,) = json.loads(answered.stdout)["outputs"]["probability"]
    assert 0.0 < probability < 1.0


@pytest.mark.slow
def test_broken_mended_and_resumed_it_does_not_make_features_again(checkout: Checkout, whole: Any) -> None:
    assert whole["state"] == "success"
    train = checkout.folder / "dags" / "flights" / "train.py"
    sound = train.read_text()
    train.write_text(
        sound.replace("import torch\n", "import torch\n\nraise ValueError('the tape is torn')\n", 1)
    )
    assert train.read_text() != sound
    quick = [
        word
        for param in ("since=2013-12", "month=2013-12", "test_from=2013-12")
        for word in ("--param", param)
    ]

    broken = by_name(checkout.muster("run", "flights", "--json", *quick, code=1))
    assert broken["train"]["state"] == "failed"
    assert "ValueError: the tape is torn" in broken["train"]["message"]
    assert broken["gate"]["state"] == "upstream_failed"
    features = checkout.jobs_of("features")

    train.write_text(sound)
    resumed = by_name(checkout.muster("run", "flights", "--json", "--resume"))
    assert {stage["state"] for stage in resumed.values()} == {"success"}
    assert [name for name, stage in resumed.items() if stage["kept"]] == ["features", "validate"]
    assert checkout.jobs_of("features") == features
    assert resumed["features"]["versions"] == broken["features"]["versions"]
