"""The model card: its figures are the record's and right, its page is safe to open anywhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.data]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, probe: Any) -> Path:
    """A model of made-up flights, which are late by the airport's delay and the carrier."""
    folder = tmp_path_factory.mktemp("trained")
    probe("train", "train", "run", folder)
    return folder


@pytest.fixture(scope="module")
def made(trained: Path, probe: Any) -> Any:
    return probe("report", "report", trained, trained / "cards")


def test_its_figures_are_those_of_the_test(made: Any) -> None:
    card = made["card"]
    assert made["told"] == {"cards": 1, "rows": 2000}
    assert card["metrics"]["auc"] == pytest.approx(card["lineage"]["record"]["metrics"]["auc"], abs=1e-6)
    low, high = card["auc_interval"]
    assert low < card["metrics"]["auc"] < high
    assert high - low < 0.1
    assert sum(row["rows"] for row in card["airlines"]) == card["rows"] == 2000
    assert [row["label"] for row in card["airlines"]] == ["Endeavor", "American", "United"]
    assert sum(row["rows"] for row in card["calibration"]) == 2000
    curve = card["roc"]
    assert (curve["false_alarms"][0], curve["found"][-1]) == (0.0, 1.0)
    assert curve["found"] == sorted(curve["found"])


def test_what_the_flights_were_made_by_matters_most(made: Any) -> None:
    found = made["card"]["importance"]
    assert found["columns"][0]["name"] == "airport_delay"
    assert found["groups"][0]["name"] == "how the airport runs now"
    assert {each["name"] for each in found["columns"][:2]} == {"airport_delay", "carrier"}
    idle = [each for each in found["columns"] if each["name"] == "origin"]
    assert idle[0]["loss"] == 0  # all of them leave from one airport


def test_the_page_needs_nothing_runs_nothing_and_shows_what_is_hostile_as_text(made: Any) -> None:
    page = made["page"]
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "&lt;!-- title --&gt;" in page
    assert "<h1>Model card: f/model@1</h1>" in page
    loaded = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert all(each.startswith("#") for each in loaded)
    assert page.count("<svg") == 5
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(set(ids)) == len(ids)
    assert {"calibration.png", "ranking.png", "airlines.png", "months.png", "importance.png"} < {
        *made["files"]
    }


@pytest.mark.nightly  # once more
def test_the_same_model_makes_the_same_card(made: Any, trained: Path, probe: Any) -> None:
    assert probe("report", "report", trained, trained / "again")["files"] == made["files"]


def test_a_model_that_was_tested_on_other_flights_gets_no_card(trained: Path, probe: Any) -> None:
    assert probe("report", "report", trained, trained / "other", 0.5, fails=True) is None
