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
    assert answers["holds"]["metrics"] == {"expectations": 3, "failed": 0, "warnings": 0, "rows": 1000}
    assert answers["holds"]["result"]["success"] is True
    assert answers["holds"]["files"] == ["docs/index.html", "result.json"]


def test_each_failure_says_what_was_found(answers: dict[str, Any]) -> None:
    assert answers["fails"]["metrics"] == {"expectations": 6, "failed": 3, "warnings": 0, "rows": 1000}
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
    said = ("</i>Not evaluated", "</i>Failed", "42 of 1,000 values unexpected, such as 0")
    assert [first.count(text) for text in said] == [1, 2, 1]
    assert first.index(said[0]) < first.index(said[1])
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
    """A new lock needs a new catalogue: `python -m muster_validate` in the folder of the image writes it."""
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
        ("no data", "no Parquet or CSV file in "),
        ("broken data", "the data cannot be read: "),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(answers: dict[str, Any], case: str, said: str) -> None:
    assert answers[case].startswith(said)


def test_a_warning_is_told_and_the_suite_passes(answers: dict[str, Any]) -> None:
    found = answers["severity"]
    assert found["metrics"] == {"expectations": 2, "failed": 0, "warnings": 1, "rows": 1000}
    assert found["result"]["success"] is True
    assert "</i>Failed (warning)" in found["docs"]


def test_csv_is_read_in_its_encoding(answers: dict[str, Any]) -> None:
    assert {name: found[0] for name, found in answers["encodings"].items()} == dict.fromkeys(
        ("utf-8", "cp1252", "utf-16"), True
    )
    for name in ("cp1252", "utf-16"):
        assert "a.csv is not in UTF-8 (byte 0x" in answers["encodings"][name][1]
        assert "encoding='cp1252'" in answers["encodings"][name][1]


def test_a_column_whose_type_changes_late_says_so(answers: dict[str, Any]) -> None:
    """DuckDB looks at the first 20,480 rows unless it is told otherwise, and one error aborted all of the suite."""
    mean, in_set, length = answers["late"]["results"]
    assert length["result"]["unexpected_count"] == 1
    assert "9… (100,000 characters)" in str(length)
    assert len(str(answers["late"])) < 20_000
    assert "column 'n' is of type VARCHAR" in mean["exception_info"]["exception_message"]
    assert in_set["result"]["unexpected_count"] == 1
    assert answers["header"]["results"][1]["success"] is True
    assert "Traceback" not in str(answers["header"])


@pytest.fixture(scope="module")
def every(probe: Probe, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return dict(probe("validate", "expectations", tmp_path_factory.mktemp("every")))


@pytest.mark.nightly
def test_every_expectation_of_the_library_runs_or_is_refused_by_name(every: dict[str, Any]) -> None:
    """Another version of the library has other ones: each needs a case in probes/expectations.py, or a reason in REFUSED."""
    assert every["cases"] == every["known"]


@pytest.mark.nightly
@pytest.mark.parametrize(("data", "held"), [("good", True), ("good texts of csv", True), ("bad", False)])
def test_every_expectation_is_evaluated(every: dict[str, Any], data: str, held: bool) -> None:
    assert {kind: found for kind, found in every[data].items() if found != [held, None]} == {}


@pytest.mark.nightly
def test_what_cannot_be_evaluated_says_why_and_hides_no_other(every: dict[str, Any]) -> None:
    found = dict(every["impossible"])
    assert found.pop("expect_column_values_to_be_between") == [False, None]
    assert {kind: said for kind, said in found.items() if said[0] or not said[1]} == {}
    assert len(found) > 45
    said = " ".join(why for _, why in found.values())
    assert not any(
        word in said for word in ("Traceback", "SELECT", "LINE 1", "index out of range", "sqlalche.me")
    )
