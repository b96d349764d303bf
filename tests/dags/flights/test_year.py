"""The reference pipeline as a person runs it on the real year: every month passes its suite, and the model is a good one."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.dags.flights.conftest import ROOT, Probe
from tests.e2e.author import Author, stages

from muster.volumes.folder import FolderStore

# `make demo` runs the same in CI, with its suite and its gate, and the tests beside this one run the code of its stages.
pytestmark = [pytest.mark.slow, pytest.mark.data, pytest.mark.nightly]


@dataclass(frozen=True)
class Year:
    """A run of the Dag as it is; what it deployed answers for as long as its author is there."""

    home: Path
    said: Any


@pytest.fixture(scope="module")
def year(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Year]:
    folder = tmp_path_factory.mktemp("flights")
    shutil.copytree(ROOT / "dags", folder / "dags", ignore=shutil.ignore_patterns("__pycache__"))
    with Author(folder) as author:
        yield Year(author.home, author.ask("run", "flights"))


def test_every_stage_succeeds_and_says_what_it_left(year: Year) -> None:
    done = stages(year.said)
    assert list(done) == ["features", "validate", "train", "gate", "deploy"]
    assert {stage["state"] for stage in done.values()} == {"success"}
    assert len(done["features"]["versions"]["features"]) == 12
    assert all(stage["seconds"] > 0 for stage in done.values())
    assert done["train"]["overhead_seconds"] is not None


def test_the_suite_holds_on_every_month_but_not_on_a_spoilt_one(
    year: Year, probe: Probe, tmp_path: Path
) -> None:
    """That it holds on all of them together is what the run found."""
    store = FolderStore(year.home / "store")
    (tmp_path / "features").mkdir()
    for version in store.versions("flights/features"):
        (tmp_path / "features" / str(version.partition)).symlink_to(store.path(version.address))
    failed = probe("validate", "validate", tmp_path, ROOT / "dags" / "flights" / "expectations.json")
    spoilt = failed.pop("spoilt")
    assert list(failed) == [f"2013-{month:02}" for month in range(1, 13)]
    assert set(map(tuple, failed.values())) == {()}
    assert sorted(spoilt) == [
        "expect_column_mean_to_be_between late",
        "expect_column_values_to_be_between hour",
        "expect_column_values_to_not_be_null temp",
        "expect_compound_columns_to_be_unique",
    ]


def test_the_model_is_good_enough_better_than_logistic_regression_and_calibrated(year: Year) -> None:
    metrics = stages(year.said)["train"]["metrics"]
    assert (metrics["rows_train"], metrics["rows_test"]) == (244_737, 82_609)
    assert metrics["auc"] >= 0.74
    assert metrics["auc"] > metrics["auc_baseline"] + 0.005
    assert metrics["auc_baseline"] > 0.73
    assert metrics["brier"] < metrics["brier_baseline"]
    assert metrics["ece"] < 0.03
    assert metrics["onnx_difference"] < 1e-5


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl here, which the line is for")
def test_the_curl_line_answers(year: Year) -> None:
    (deployment,) = year.said["deployments"]
    answered = subprocess.run(shlex.split(deployment["curl"]), capture_output=True, text=True, check=True)
    head, _, body = answered.stdout.partition("\n\n")
    (probability,) = json.loads(body)["outputs"]["probability"]
    assert 0.0 < probability < 1.0
    assert f"muster-model: {deployment['version']}" in head.splitlines()
