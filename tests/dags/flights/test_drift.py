"""The image validate compares a window of predictions with a reference, and draws what it found."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tests.dags.flights.conftest import Probe

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def answers(probe: Probe, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return dict(probe("validate", "drift", tmp_path_factory.mktemp("drift")))


def test_equal_distributions_have_not_drifted_though_one_side_is_fp32(answers: dict[str, Any]) -> None:
    assert answers["same"]["drifted"] == {}
    assert answers["same"]["columns"] == ["delay", "month", "carrier"]
    metrics = answers["same"]["metrics"]
    assert (metrics["rows"], metrics["reference_rows"], metrics["columns"], metrics["drifted"]) == (
        2000,
        20000,
        3,
        0,
    )


@pytest.mark.parametrize(
    ("case", "column", "measures"),
    [
        ("moved", "delay", ["psi", "ks"]),
        ("unseen", "carrier", ["psi", "unseen"]),
        ("nulls", "month", ["nulls"]),
    ],
)
def test_what_has_drifted_is_named_with_the_measures_that_say_so(
    answers: dict[str, Any], case: str, column: str, measures: list[str]
) -> None:
    assert answers[case]["drifted"] == {column: measures}
    assert answers[case]["metrics"]["drifted"] == 1
    assert answers[case]["said"].endswith(f"1 of 3 columns have drifted: {column}")
    assert answers[case]["columns"][0] == column  # what drifted comes first


def test_too_few_rows_are_not_judged(answers: dict[str, Any]) -> None:
    assert (answers["few"]["metrics"]["rows"], answers["few"]["metrics"]["columns"]) == (100, 0)
    assert answers["none"]["metrics"]["rows"] == 0
    assert "0 rows are too few to judge" in answers["none"]["page"]
    assert answers["few"]["said"] == "100 rows: too few to judge, 500 are needed"
    assert answers["same"]["said"] == "2,000 rows, 0 of 3 columns have drifted"


def test_a_column_without_reference_values_is_not_judged_and_named(answers: dict[str, Any]) -> None:
    bare = answers["bare"]
    assert bare["said"] == "2,000 rows, 0 of 2 columns have drifted"
    assert (bare["metrics"]["not_judged"], bare["metrics"]["drifted"]) == (1, 0)
    assert "delay not judged</h2><p>the reference has no values, the window 2,000" in bare["page"]


def test_a_revision_and_columns_are_chosen(answers: dict[str, Any]) -> None:
    assert answers["revision"]["metrics"]["rows"] == 500
    assert answers["no_revision"]["said"] == (
        "0 rows of revision r9 (r1, r2 answered): too few to judge, 500 are needed"
    )
    assert answers["columns"]["columns"] == ["carrier"]
    assert (
        "no column 'elsewhere' on both sides; there is delay, month, carrier" in answers["unknown"]["error"]
    )


def test_the_page_needs_nothing_from_elsewhere_and_shows_hostile_values_as_text(
    answers: dict[str, Any],
) -> None:
    page = answers["unseen"]["page"]
    assert "<svg" in page
    assert "default-src 'none'" in page
    assert "<b>&new" not in page
    assert not re.search(r"<(script|link|img|iframe)\b", page)
