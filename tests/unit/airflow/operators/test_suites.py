"""Suites that do not parse are named with their line; a failure says what was found and where the docs are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from muster.airflow.authoring.code import DagFolder
from muster.airflow.operators.suites import failure_text, read_suite
from muster.core.errors import SpecError


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


def expectation(kind: str, *, success: bool = False, **result: Any) -> dict[str, Any]:
    config = {"type": kind, "kwargs": {"column": "dep_delay", "max_value": 1800, "batch_id": "noise"}}
    return {"success": success, "expectation_config": config, "result": result}


def test_a_failed_suite_names_what_failed_what_was_found_and_where_the_docs_are() -> None:
    document = {
        "success": False,
        "results": [
            expectation("expect_a", success=True),
            expectation("expect_b", unexpected_count=2, partial_unexpected_list=[1900, 2000]),
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
        "it is retired, so no selector finds it; mend the data or the suite and run again",
        "result and Data Docs: muster volumes get volume://f/x-validation@3 FOLDER",
    ]
