"""Suites that do not parse are named with their line; a failure says what was found and where the docs are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from muster.airflow.authoring.code import DagFolder
from muster.airflow.operators.releasing import made_again
from muster.airflow.operators.validate import (
    check_suite,
    failure_text,
    is_violated,
    read_suite,
    warning_text,
)
from muster.core.errors import SpecError
from muster.core.origin import MUSTER_RUN, Origin
from muster.core.shipped import shipped


@pytest.fixture
def folder(tmp_path: Path) -> DagFolder:
    return DagFolder(file=tmp_path / "dag.py", bundle=tmp_path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"expectations":\n [,]}', "suite s.json is not JSON: .*line 2"),
        ("[]", "suite s.json: expected"),
        ('{"expectations": []}', "one or more"),
        ('{"expectations": [{"kwargs": {}}]}', "expectation 1 has no type"),
    ],
)
def test_a_suite_that_does_not_parse_is_named_with_its_line(folder: DagFolder, text: str, says: str) -> None:
    (folder.path / "s.json").write_text(text)
    with pytest.raises(SpecError, match=says):
        read_suite(folder, "s.json")


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        (
            {"type": "expect_column_values_to_be_betwen", "kwargs": {"column": "a"}},
            "which image 'validate' does not know; did you mean expect_column_values_to_be_between?",
        ),
        ({"type": "miracles"}, r"image 'validate' does not know; it knows \d+, listed in .*catalogue.json"),
        (
            {"type": "expect_column_values_to_not_be_null", "kwargs": {"colunm": "a"}},
            "expectation 2, expect_column_values_to_not_be_null takes no keyword 'colunm'; did you mean column?",
        ),
        (
            {"type": "expect_column_values_to_not_be_null", "kwargs": {"meta": {}}},
            "needs the keyword column; found meta",
        ),
        (
            {"type": "expect_table_row_count_to_equal_other_table", "kwargs": {"other_table_name": "b"}},
            "expectation 2, expect_table_row_count_to_equal_other_table, cannot run here: it compares with another table",
        ),
        (
            {"type": "expect_column_values_to_not_be_null", "kwargs": ["a"]},
            "kwargs is .*, expected an object",
        ),
    ],
)
def test_a_suite_is_held_against_what_the_image_knows(entry: Any, says: str) -> None:
    fine = {
        "type": "expect_column_values_to_not_be_null",
        "kwargs": {"column": "a", "mostly": 0.9, "meta": {}},
    }
    image = shipped("images") / "validate"
    check_suite({"expectations": [fine]}, image, "s.json")
    with pytest.raises(SpecError, match=says):
        check_suite({"expectations": [fine, entry]}, image, "s.json")


def test_an_image_without_a_catalogue_says_nothing_of_what_it_knows(tmp_path: Path) -> None:
    check_suite({"expectations": [{"type": "expect_miracles"}]}, tmp_path, "s.json")


def test_a_column_that_is_not_there_is_told_with_the_nearest_and_retires_nothing() -> None:
    missing = expectation("expect_a")
    missing["expectation_config"]["kwargs"]["column"] = "dep_dely"
    missing["exception_info"] = {"raised_exception": True, "exception_message": "Error: The column ..."}
    document = {"success": False, "results": [missing], "columns": ["dep_delay", "carrier"]}
    lines = failure_text(
        document, suite="s.json", addresses=["volume://f/x@7"], result="volume://r@3", retired=False
    ).splitlines()
    assert lines[1].endswith("there is no column 'dep_dely'; did you mean dep_delay?")
    assert lines[2].startswith("nothing is retired, since none of these could be evaluated")


def expectation(kind: str, *, success: bool = False, **result: Any) -> dict[str, Any]:
    config = {"type": kind, "kwargs": {"column": "dep_delay", "max_value": 1800, "batch_id": "noise"}}
    return {"success": success, "expectation_config": config, "result": result}


def test_a_failed_suite_names_what_failed_what_was_found_and_where_the_docs_are() -> None:
    document = {
        "success": False,
        "results": [
            expectation("expect_a", success=True),
            expectation("expect_b", unexpected_count=2, partial_unexpected_list=[1900, 1900, 2000]),
            expectation("expect_c", observed_value=17),
        ],
    }
    text = failure_text(
        document,
        suite="s.json",
        addresses=["volume://f/x@7"],
        result="volume://f/x-validation@3",
        retired=True,
    )
    assert text.splitlines() == [
        "validation failed: 2 of 3 expectations of s.json on volume://f/x@7",
        (
            "expect_b on dep_delay (max_value=1800): 2 unexpected, such as 1900, 2000; "
            "expect_c on dep_delay (max_value=1800): found 17"
        ),
        "no selector finds volume://f/x@7 any more (retired); mend the data or the suite and run again",
        "result and Data Docs: muster volumes get volume://f/x-validation@3 FOLDER",
    ]


def test_a_failed_suite_says_how_the_data_are_made_again() -> None:
    """Plain --resume kept the data that had failed, and they failed once more."""
    maker = Origin(dag_id="f", run_id=f"{MUSTER_RUN}1", task_id="features")
    document = {"success": False, "results": [expectation("expect_b", unexpected_count=2)]}
    text = failure_text(
        document,
        suite="s.json",
        addresses=["volume://f/x@7"],
        result="volume://r@3",
        retired=True,
        then=made_again(maker, maker.again, of="suite"),
    )
    assert text.splitlines()[2].endswith(
        "(retired); mended data: `muster run f --from features`, a mended suite: `muster run f --resume`"
    )


def test_what_could_not_be_evaluated_is_told_first_and_hides_no_violation() -> None:
    """One expectation that raised in SQL hid all others, and the data were not retired."""
    unknown = [expectation(f"expect_u{number}") for number in range(4)]
    for each in unknown:
        each["exception_info"] = {"raised_exception": True, "exception_message": "no regex: ("}
    violated = expectation("expect_b", unexpected_count=2, partial_unexpected_list=[1900])
    document = {"success": False, "results": [violated, *unknown]}
    lines = failure_text(
        document, suite="s.json", addresses=["volume://f/x@7"], result="volume://r@3", retired=True
    ).splitlines()
    assert lines[0].startswith("validation failed: 5 of 5 expectations of s.json")
    assert lines[0].endswith("4 of which could not be evaluated")
    assert lines[1].startswith("expect_u0 on dep_delay (max_value=1800): could not be evaluated: no regex: (")
    assert lines[1].endswith("2 unexpected, such as 1900; and 2 more")
    assert lines[2].startswith("no selector finds volume://f/x@7 any more (retired)")
    assert is_violated(violated)
    assert not is_violated(unknown[0])


def test_a_warning_is_told_and_fails_nothing() -> None:
    warned = expectation("expect_b", unexpected_count=2)
    warned["expectation_config"]["severity"] = "warning"
    failed = expectation("expect_c", observed_value=17)
    document = {"success": False, "results": [warned, failed]}
    assert not is_violated(warned)
    assert warning_text(document, suite="s.json") == (
        "s.json warns of 1 of 2 expectations: expect_b on dep_delay (max_value=1800): 2 unexpected"
    )
    text = failure_text(
        document, suite="s.json", addresses=["volume://f/x@7"], result="volume://r@3", retired=True
    )
    assert text.startswith("validation failed: 1 of 2 expectations")
    assert "expect_b" not in text
    assert (
        warning_text({"success": True, "results": [expectation("expect_a", success=True)]}, suite="s.json")
        == ""
    )
