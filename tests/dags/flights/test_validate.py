"""The image validate runs a suite, says what failed, and writes Data Docs that ask no other host for anything."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from tests.dags.flights.conftest import Probe

from muster.core.shipped import shipped

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def answers(probe: Probe, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return dict(probe("validate", "validate", tmp_path_factory.mktemp("validate")))


def test_a_suite_that_holds_on_all_versions_together(answers: dict[str, Any]) -> None:
    assert answers["holds"]["metrics"] == {"expectations": 3, "failed": 0, "rows": 1000}
    assert answers["holds"]["result"]["success"] is True
    assert answers["holds"]["files"] == ["docs/index.html", "result.json"]


def test_each_failure_says_what_was_found(answers: dict[str, Any]) -> None:
    assert answers["fails"]["metrics"] == {"expectations": 6, "failed": 3, "rows": 1000}
    result = answers["fails"]["result"]
    assert result["success"] is False
    failed = {
        each["expectation_config"]["kwargs"]["column"]: each
        for each in result["results"]
        if not each["success"]
    }
    assert failed["hour"]["result"]["unexpected_count"] == 42
    assert failed["hour"]["result"]["partial_unexpected_list"][0] == 0
    assert "minute" in failed["minute"]["exception_info"]["exception_message"]
    assert "Traceback" not in str(result)


def test_data_docs_ask_no_other_host_for_anything(answers: dict[str, Any]) -> None:
    page = answers["fails"]["docs"]
    assert "expected to be between" in page or "must be" in page
    assert "https://a.example/" in page  # a value of the data is text, not a reference
    assert not re.search(r"<(script|link|img|iframe|object|embed)\b", page, re.IGNORECASE)
    assert not re.search(r"""(src|href|action)\s*=\s*["']?\s*(https?:)?//""", page, re.IGNORECASE)
    assert not re.search(r"""(url\(|@import)\s*["']?\s*(https?:)?//""", page, re.IGNORECASE)
    assert "default-src 'none'" in page


def test_data_docs_begin_with_what_failed(answers: dict[str, Any]) -> None:
    page = answers["fails"]["docs"]
    body = page[page.index("<body") :]
    assert "<h1>3 of 6 expectations failed</h1>" in body
    first = body[: body.index("Overview")]
    assert [first.count(text) for text in ("</i>Failed", "42 of 1,000 values unexpected, such as 0")] == [
        3,
        1,
    ]
    assert "all 3 expectations hold" in answers["holds"]["docs"]
    # The marks are letters of a font that the page does not have, and a script that it must not run.
    assert '.fa-times::before { content: "\\2717 "; }' in page
    assert not re.search(r"""<a\b[^>]*href\s*=\s*["']?(?!#)[^"'#]""", page)


def test_csv_files_are_read_beside_parquet(answers: dict[str, Any]) -> None:
    assert answers["csv"]["success"] is True
    assert sorted(answers["csv"]["columns"]) == ["hour", "key"]


def test_a_distribution_is_compared(answers: dict[str, Any]) -> None:
    (compared,) = answers["distributions"]["results"]
    assert compared["success"] is True
    assert 0 < compared["result"]["observed_value"] < 0.001


def test_the_catalogue_is_of_what_is_installed(answers: dict[str, Any]) -> None:
    """A new lock needs a new catalogue: `python images/validate/muster_validate.py` in the image writes it."""
    assert json.loads((shipped("images") / "validate" / "catalogue.json").read_text()) == answers["catalogue"]


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("no list", "the suite holds no list of expectations"),
        ("no type", "expectation 1 of the suite is {'kwargs': {}}: need an object with type and kwargs"),
        (
            "unknown",
            "expectation 2 of the suite, expect_miracles, cannot be understood: expect_miracles not found",
        ),
        ("misspelt", "expectation 1 of the suite, expect_column_values_to_not_be_null, cannot be understood"),
        ("no data", "no Parquet or CSV file in "),
        ("broken data", "the data cannot be read: "),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(answers: dict[str, Any], case: str, said: str) -> None:
    assert answers[case].startswith(said)
