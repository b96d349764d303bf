"""Training: a gang that is started again ends as one that was not, and what it exports answers as it did."""

from __future__ import annotations

from typing import Any

import pytest
from tests.dags.flights.conftest import Probe

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trained(probe: Probe, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("trained")
    return dict(probe("train", "train", "learned", folder))


@pytest.fixture(scope="module")
def disturbed(probe: Probe, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("disturbed")
    return dict(probe("train", "train", "disturbed", folder, says="going on after epoch 2 of 4"))


@pytest.fixture(scope="module")
def served(trained: dict[str, Any]) -> dict[str, Any]:
    return dict(trained["served"])


@pytest.mark.nightly  # contract/test_backend.py starts a gang again from its checkpoint
def test_a_gang_killed_and_started_again_ends_with_the_same_model(disturbed: dict[str, Any]) -> None:
    assert disturbed["killed"]["exits"][0] == 9
    assert not disturbed["killed"]["left"]
    assert disturbed["again"] == disturbed["undisturbed"]
    assert disturbed["again"]["exits"] == [0, 0]


def test_it_learns_what_is_there_and_beats_the_baseline_where_it_is_not_linear(
    trained: dict[str, Any],
) -> None:
    metrics = trained["undisturbed"]["metrics"]
    assert metrics["auc"] > metrics["auc_baseline"] > 0.6
    assert trained["undisturbed"]["files"] == ["model.onnx", "report.json", "signature.json", "tensorboard"]


@pytest.mark.nightly
def test_where_nothing_is_to_be_learned_it_learns_nothing(disturbed: dict[str, Any]) -> None:
    metrics = disturbed["blind"]["metrics"]
    assert metrics["auc"] == pytest.approx(0.5, abs=0.05)
    assert metrics["auc_baseline"] == pytest.approx(0.5, abs=0.05)


def test_the_graph_takes_what_the_signature_says(served: dict[str, Any]) -> None:
    kinds = {"BYTES": "tensor(int64)", "INT64": "tensor(int64)", "FP32": "tensor(float)"}
    said = {each["name"]: [kinds[each["datatype"]], ["rows"]] for each in served["signature"]["inputs"]}
    assert served["graph"] == said
    assert [each["name"] for each in served["signature"]["outputs"]] == ["probability"]


def test_categories_begin_with_the_unknown_one(served: dict[str, Any]) -> None:
    (carrier,) = [each for each in served["signature"]["inputs"] if each["name"] == "carrier"]
    assert carrier["categories"] == ["UNKNOWN", "9E", "AA", "UA"]
    assert carrier["fallback"] == "UNKNOWN"


def test_one_row_is_answered_as_among_many(served: dict[str, Any]) -> None:
    assert served["alone"] == pytest.approx(served["together"], abs=1e-6)


def test_a_carrier_never_seen_is_answered_too(served: dict[str, Any]) -> None:
    assert all(0 < probability < 1 for probability in served["strange"])
    assert served["strange"] != served["together"]


def test_the_gates_score_is_the_trainings_own(trained: dict[str, Any]) -> None:
    score = dict(trained["served"]["score"])
    assert score.pop("rows") == 2000
    metrics = trained["undisturbed"]["metrics"]
    assert score == {name: pytest.approx(metrics[name], abs=1e-6) for name in score}


def test_metrics_are_what_their_definitions_say(trained: dict[str, Any]) -> None:
    known = trained["known"]
    assert known["auc"] == pytest.approx(known["auc_by_pairs"], abs=1e-12)
    assert known["fair"]["ece"] < 0.01
    assert known["fair"]["brier"] == pytest.approx(1 / 6, abs=0.005)
    assert known["sure"] == {
        "auc": 1.0,
        "brier": pytest.approx(0),
        "log_loss": pytest.approx(0, abs=1e-6),
        "ece": pytest.approx(0, abs=1e-6),
    }


def test_rows_and_plans_that_cannot_be_trained_on_are_refused_by_name(trained: dict[str, Any]) -> None:
    said = trained["refused"]
    assert said["nothing"] == "no Parquet file in an empty list of versions"
    assert said["no file"].startswith("no Parquet file in ")
    assert said["no column"].startswith("column 'hour' is missing in ")
    assert said["a missing value"] == "column 'hour' has 500 missing values; the model takes none"
    assert said["one class"] == "of 500 flights 0 are late: the AUC needs both kinds"
    assert said["no epoch"].startswith("epochs, batch and rate must be above 0, found 0, 1 and 0.1")
    assert said["a batch too big"].startswith("batch is 1000: need a multiple of the 1 ranks")
