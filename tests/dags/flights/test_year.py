"""The real year: every month passes its suite, and the model is one that a practitioner would accept."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.dags.flights.conftest import ROOT, Probe

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def year(probe: Probe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("year")
    (folder / "features").mkdir()
    probe("etl", "etl", "year", folder / "features")
    return folder


def test_the_suite_holds_on_every_month_and_on_all_but_not_on_a_spoilt_one(year: Path, probe: Probe) -> None:
    failed = probe("validate", "validate", year, ROOT / "dags" / "flights" / "expectations.json")
    spoilt = failed.pop("spoilt")
    assert len(failed) == 13
    assert set(map(tuple, failed.values())) == {()}
    assert sorted(spoilt) == [
        "expect_column_mean_to_be_between late",
        "expect_column_values_to_be_between hour",
        "expect_column_values_to_not_be_null temp",
        "expect_compound_columns_to_be_unique",
    ]


def test_the_model_is_good_enough_better_than_logistic_regression_and_calibrated(
    year: Path, probe: Probe
) -> None:
    metrics = probe("train", "train", "year", year, ranks=2)
    assert (metrics["rows_train"], metrics["rows_test"]) == (244_737, 82_609)
    assert metrics["auc"] >= 0.74
    assert metrics["auc"] > metrics["auc_baseline"] + 0.005
    assert metrics["auc_baseline"] > 0.73
    assert metrics["brier"] < metrics["brier_baseline"]
    assert metrics["ece"] < 0.03
    assert metrics["onnx_difference"] < 1e-5
