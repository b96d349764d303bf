"""The columns of a topic's messages: as many as a table has, whatever keys the messages have."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from tests.ingest.conftest import IMAGE

pytestmark = [pytest.mark.slow, pytest.mark.data]

Take = Callable[..., Any]


@pytest.fixture
def take(python: Path, tmp_path: Path) -> Take:
    """Take messages, and tell how it ended."""

    def take(messages: Iterable[object], unreadable: str = "stop") -> Any:
        said = subprocess.check_output(
            [python, Path(__file__).with_name("drive_rows.py"), tmp_path, unreadable],
            input="".join(json.dumps(each) + "\n" for each in messages),
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(IMAGE)},
            text=True,
            timeout=120,
        )
        return json.loads(said)

    return take


@pytest.mark.parametrize("where", ["columns", "an object", "a list"])
def test_keys_that_are_new_in_each_message_are_refused(take: Take, tmp_path: Path, where: str) -> None:
    def message(number: int) -> dict[str, object]:
        own = {f"key-{number}": number}
        return {"columns": own, "an object": {"of": own}, "a list": {"of": [own]}}[where]

    told = take(message(number) for number in range(4_000))
    assert told["error"] == "IngestError"
    last = 2_000 if where == "columns" else 1_999
    assert (
        f"with the message at offset {last:,} of partition 3 the columns have 2,001 fields" in told["message"]
    )
    assert "values='raw'" in told["message"]
    assert list(tmp_path.glob("*.parquet")) == []


def test_as_many_fields_as_a_table_has_are_taken(take: Take) -> None:
    assert take({f"key-{number}": number} for number in range(2_000))["rows"] == 2_000


def test_one_message_with_too_many_fields_is_put_apart(take: Take) -> None:
    wide = {f"key-{number}": number for number in range(2_001)}
    assert "found 2,001 fields" in take([{"n": 1}, wide])["message"]
    told = take([{"n": 1}, wide, {"n": 2}], "keep")
    assert (told["rows"], told["unreadable"]) == (2, 1)


@pytest.mark.parametrize("poison", [{"a": "x"}, {"a": True}, {"a": [1]}, {"a": {"b": 1}}])
def test_a_message_that_does_not_fit_the_columns_goes_the_way_of_unreadable(take: Take, poison: Any) -> None:
    """It stopped the stream for ever, whatever `unreadable` said."""
    messages = [{"a": 1}, poison, {"a": 2.5, "b": "new"}]
    stopped = take(messages)["message"]
    assert "the message at offset 1 of partition 3 changes the columns (column 'a')" in stopped
    assert "unreadable='skip'" in stopped
    told = take(messages, "skip")
    assert (told["rows"], told["unreadable"]) == (2, 1)
    kept = take(messages, "keep")
    assert kept["files"] == ["_unreadable/part-00000.parquet", "part-00000.parquet"]


def test_what_makes_too_many_columns_goes_the_way_of_unreadable(take: Take) -> None:
    many = ({f"key-{number}": number} for number in range(2_010))
    told = take(many, "skip")
    assert (told["rows"], told["unreadable"]) == (2_000, 10)
