"""Old names of one release ago: the table is empty, or its names still work. Each case plants a name in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from muster.core import wire
from muster.core.deprecated import NAMES, Renamed, current, old_options
from muster.core.settings import Settings
from muster.core.verdict import Cause, Verdict


@pytest.fixture(autouse=True)
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, now in {
        "MUSTER_FOLDER": "MUSTER_HOME",
        "muster volumes ls --every": "--all",
        "json Verdict.why": "cause",
        "muster.airflow.JobSpec": "Role",
    }.items():
        monkeypatch.setitem(NAMES, name, Renamed(now=now, goes="9.0"))


def test_the_warning_says_what_to_write_and_until_when() -> None:
    with pytest.warns(DeprecationWarning, match="MUSTER_FOLDER") as warned:
        assert current("MUSTER_FOLDER") == "MUSTER_HOME"
    (one,) = warned
    assert str(one.message) == "MUSTER_FOLDER is now MUSTER_HOME; MUSTER_FOLDER goes with release 9.0"
    assert current("MUSTER_HOME") is None


def test_a_variable_is_read_under_its_old_name_unless_the_new_one_is_set(tmp_path: Path) -> None:
    old, new = {"MUSTER_FOLDER": str(tmp_path / "old")}, {"MUSTER_HOME": str(tmp_path / "new")}
    with pytest.warns(DeprecationWarning, match="MUSTER_FOLDER is now MUSTER_HOME"):
        assert Settings.load(old).home == tmp_path / "old"
    with pytest.warns(DeprecationWarning, match="MUSTER_FOLDER is now MUSTER_HOME"):
        assert Settings.load({**old, **new}).home == tmp_path / "new"


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        (["volumes", "ls", "--every"], ["volumes", "ls", "--all"]),
        (["volumes", "ls", "raw/rows", "--every=1", "--json"], ["volumes", "ls", "raw/rows", "--all=1", "--json"]),
        (["volumes", "log", "--every"], ["volumes", "log", "--every"]),
        (["volumes", "ls", "--", "--every"], ["volumes", "ls", "--", "--every"]),
    ],
)  # fmt: skip
def test_an_option_is_read_under_its_old_name(typed: list[str], read: list[str]) -> None:
    words, warned = old_options(typed)
    assert words == read
    assert warned == (
        []
        if words == typed
        else [
            "muster volumes ls --every is now --all; muster volumes ls --every goes with release 9.0",
        ]
    )


def test_json_has_a_key_under_both_names_and_documents_have_the_new_one_alone() -> None:
    class Old(Verdict):
        @property
        def why(self) -> Any:
            return self.cause

    Old.__name__ = "Verdict"
    verdict = Old(cause=Cause.HANG, message="m", advice="a")
    assert wire.plain(verdict)["why"] == wire.plain(verdict)["cause"] == "hang"
    assert "why" not in json.loads(wire.dumps(verdict))
    assert "why" not in json.loads(wire.dumps_every_field(verdict))
