"""``muster volumes`` on a real store."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from muster.volumes.folder import FolderStore

Run = Callable[..., Any]


@pytest.mark.usefixtures("history")
class TestReading:
    def test_ls_names_each_volume_with_its_latest(self, muster: Run) -> None:
        lines = muster("volumes", "ls").out.splitlines()
        assert lines[0].split() == ["volume", "versions", "latest", "partition", "size", "made"]
        assert lines[1].split()[:4] == ["flights/features", "2", "@2", "2013-02"]
        assert lines[2].split()[:4] == ["flights/model", "2", "@2", "-"]

    def test_ls_json(self, muster: Run) -> None:
        features, model = muster("volumes", "ls", "--json").json()
        assert (features["volume"], features["versions"]) == ("flights/features", 2)
        assert model["latest"]["address"] == "volume://flights/model@2"

    def test_log_shows_the_lineage_newest_first(self, muster: Run) -> None:
        out = muster("volumes", "log", "flights/model").out
        assert out.index("flights/model@2") < out.index("flights/model@1")
        second = out[: out.index("flights/model@1")]
        for known in (
            "flights / manual-1 / train",
            "train-2 (flights.train, output model)",
            "flights.train:train",
            "features = flights/features@1 (b3:",
            "flights/features@2 (b3:",
            "epochs=2",
            "auc=0.72",
        ):
            assert known in second

    def test_log_json_holds_inputs_with_their_digests(self, muster: Run, history: FolderStore) -> None:
        newest, oldest = muster("volumes", "log", "flights/model", "--json").json()
        (features,) = oldest["record"]["inputs"]["features"]
        assert features["digest"] == history.resolve("flights/features@2013-01")[0].digest
        assert newest["record"]["params"] == {"epochs": 2}
        assert newest["record"]["metrics"] == {"auc": 0.72}

    def test_log_says_how_many_it_left_out(self, muster: Run) -> None:
        answer = muster("volumes", "log", "flights/model", "--limit", "1")
        assert "flights/model@1" not in answer.out
        assert "1 older version" in answer.err

    def test_log_takes_a_selector(self, muster: Run) -> None:
        found = muster("volumes", "log", "flights/features@<2013-02", "--json").json()
        assert [version["number"] for version in found] == [1]

    def test_show_lists_the_files_with_hashes(self, muster: Run) -> None:
        out = muster("volumes", "show", "flights/model@1").out
        assert "model.onnx" in out
        assert "card.md" in out
        document = muster("volumes", "show", "flights/model@1", "--json").json()
        assert [entry["path"] for entry in document["entries"]] == ["card.md", "model.onnx"]
        assert Path(document["path"], "card.md").read_bytes() == b"a model"

    def test_show_traces_back_to_what_it_was_made_from(self, muster: Run) -> None:
        out = muster("volumes", "show", "flights/model@2").out
        assert out.index("made from") < out.index("flights/features@1 (b3:", out.index("made from"))
        assert "by flights.features, code -" in out
        ancestors = muster("volumes", "show", "flights/model@2", "--json").json()["ancestors"]
        assert [a["address"] for a in ancestors if a["depth"] == 1] == [
            "volume://flights/features@1",
            "volume://flights/features@2",
        ]

    def test_a_version_that_gc_deleted_still_says_where_it_came_from(self, muster: Run) -> None:
        muster("volumes", "gc", "--keep", "1", "--yes")
        out = muster("volumes", "show", "flights/model@1").out
        assert "data deleted by gc" in out
        assert "epochs=1" in out
        assert "model.onnx" in out
        assert muster("volumes", "show", "flights/model@1", "--json").json()["deleted"] is True
        assert "deleted by gc" in muster("volumes", "get", "flights/model@1", "here").err

    def test_diff_names_changed_files_and_facts(self, muster: Run) -> None:
        out = muster("volumes", "diff", "flights/model@1", "flights/model@2").out
        assert "~ model.onnx  50 B → 100 B" in out
        assert "card.md" not in out
        assert "params.epochs: 1 → 2" in out
        assert "metrics.auc: 0.71 → 0.72" in out

    def test_diff_json(self, muster: Run) -> None:
        document = muster("volumes", "diff", "flights/model@1", "flights/model@2", "--json").json()
        assert document["files"]["changed"] == {"model.onnx": [50, 100]}
        assert document["files"]["same_files"] == 1
        assert {"name": "params.epochs", "old": 1, "new": 2} in document["record"]

    def test_diff_of_a_version_with_itself(self, muster: Run) -> None:
        answer = muster("volumes", "diff", "flights/model@1", "flights/model@1")
        assert answer.out == ""
        assert "the same" in answer.err


class TestPutAndGet:
    def test_a_folder_goes_in_and_comes_out(self, muster: Run, tmp_path: Path) -> None:
        rows = tmp_path / "rows" / "deep"
        rows.mkdir(parents=True)
        (rows / "a.csv").write_text("a,b\n1,2\n")
        put = muster("volumes", "put", tmp_path / "rows", "raw/rows", "--partition", "2013-03")
        assert put.out == "volume://raw/rows@1\n"
        got = muster("volumes", "get", "raw/rows@2013-03", tmp_path / "copy")
        assert got.code == 0
        copy = tmp_path / "copy" / "deep" / "a.csv"
        assert copy.read_text() == "a,b\n1,2\n"
        assert os.access(copy, os.W_OK)
        assert sorted(path.name for path in tmp_path.iterdir()) == [".muster", "copy", "rows"]

    def test_put_records_where_it_came_from(self, muster: Run, tmp_path: Path) -> None:
        (tmp_path / "a.csv").write_text("a\n")
        version = muster("volumes", "put", tmp_path / "a.csv", "raw/a", "--json").json()
        assert version["files"] == 1
        assert f"put from {tmp_path / 'a.csv'}" in muster("volumes", "log", "raw/a").out

    @pytest.mark.usefixtures("history")
    def test_one_file_comes_out(self, muster: Run, tmp_path: Path) -> None:
        muster("volumes", "get", "flights/model@1/card.md", tmp_path / "card.md")
        assert (tmp_path / "card.md").read_bytes() == b"a model"

    @pytest.mark.usefixtures("history")
    def test_get_never_writes_over_what_is_there(self, muster: Run, tmp_path: Path) -> None:
        (tmp_path / "mine").write_text("mine")
        answer = muster("volumes", "get", "flights/model@1", tmp_path / "mine")
        assert answer.code == 1
        assert "is there already" in answer.err
        assert (tmp_path / "mine").read_text() == "mine"


@pytest.mark.usefixtures("history")
class TestPins:
    def test_retire_and_reinstate(self, muster: Run, history: FolderStore) -> None:
        newest = history.resolve("flights/model@latest")[0]
        said = muster("volumes", "retire", newest.address, "--reason", "torn").out
        assert "is retired: torn" in " ".join(said.split())
        assert history.resolve(newest.address)[0].retired == "torn"
        assert history.resolve("flights/model@latest")[0] != newest
        assert "is live" in muster("volumes", "reinstate", newest.address).out
        assert history.resolve("flights/model@latest")[0] == newest

    def test_pin_and_unpin(self, muster: Run, history: FolderStore) -> None:
        assert "in the paper" in muster("volumes", "pin", "flights/model@1", "--reason", "in the paper").out
        assert history.resolve("flights/model@1")[0].pins == ("in the paper",)
        assert "not pinned" in muster("volumes", "unpin", "flights/model@1", "--reason", "in the paper").out
        assert history.resolve("flights/model@1")[0].pins == ()

    def test_a_hostile_reason_is_shown_harmless(self, muster: Run) -> None:
        muster("volumes", "pin", "flights/model@1", "--reason", "a\x1b]0;gone\x07\nb [red]x[/red]")
        out = muster("volumes", "show", "flights/model@1").out
        assert "\x1b" not in out
        assert r"a\x1b]0;gone\x07\nb [red]x[/red]" in out
