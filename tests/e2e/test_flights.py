"""The reference pipeline as a person runs it: from real rows to a served prediction, broken, mended, resumed."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.author import Author, stages

ROOT = Path(__file__).parents[2]
STAGES = ["features", "validate", "train", "gate", "deploy"]


@pytest.fixture
def author(tmp_path: Path) -> Iterator[Author]:
    """An author with nothing in the store: what two months teach need not be better than a champion of nine."""
    with Author(with_dags(tmp_path)) as author:
        yield author


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """What a run of the Dag as it is said; what it deployed answers for as long as its author is there."""
    with Author(with_dags(tmp_path_factory.mktemp("flights"))) as author:
        yield author.ask("run", "flights")


def with_dags(folder: Path) -> Path:
    shutil.copytree(ROOT / "dags", folder / "dags", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def jobs_of(author: Author, stage: str) -> list[str]:
    return [job for job in author.jobs() if f"flights-{stage}" in job]


@pytest.mark.slow
def test_every_stage_succeeds_and_says_what_it_left(whole: Any) -> None:
    done = stages(whole)
    assert list(done) == STAGES
    assert {stage["state"] for stage in done.values()} == {"success"}
    assert len(done["features"]["versions"]["features"]) == 12
    assert all(stage["seconds"] > 0 for stage in done.values())
    assert done["train"]["overhead_seconds"] is not None


@pytest.mark.slow
def test_the_model_is_one_that_a_practitioner_would_accept(whole: Any) -> None:
    metrics = stages(whole)["train"]["metrics"]
    assert metrics["auc"] >= 0.72
    assert metrics["auc"] > metrics["auc_baseline"]
    assert metrics["ece"] < 0.05
    assert metrics["brier"] < metrics["brier_baseline"]
    assert metrics["onnx_difference"] < 1e-4


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl here, which the line is for")
def test_the_curl_line_answers(whole: Any) -> None:
    (deployment,) = whole["deployments"]
    answered = subprocess.run(shlex.split(deployment["curl"]), capture_output=True, text=True, check=True)
    head, _, body = answered.stdout.partition("\n\n")
    (probability,) = json.loads(body)["outputs"]["probability"]
    assert 0.0 < probability < 1.0
    assert f"muster-model: {deployment['version']}" in head.splitlines()


@pytest.mark.slow
def test_broken_mended_and_resumed_it_does_not_make_features_again(author: Author) -> None:
    train = author.folder / "dags" / "flights" / "train.py"
    sound = train.read_text()
    train.write_text(
        sound.replace("import torch\n", "import torch\n\nraise ValueError('the tape is torn')\n", 1)
    )
    assert train.read_text() != sound
    quick = [word for param in ("month=2013-02", "test_from=2013-02") for word in ("--param", param)]

    broken = stages(json.loads(author.muster("run", "flights", "--json", *quick).stdout))
    assert broken["train"]["state"] == "failed"
    assert "ValueError: the tape is torn" in broken["train"]["message"]
    assert broken["gate"]["state"] == "upstream_failed"
    features = jobs_of(author, "features")

    train.write_text(sound)
    resumed = stages(author.ask("run", "flights", "--resume"))
    assert {stage["state"] for stage in resumed.values()} == {"success"}
    assert [name for name, stage in resumed.items() if stage["kept"]] == ["features", "validate"]
    assert jobs_of(author, "features") == features
    assert resumed["features"]["versions"] == broken["features"]["versions"]
