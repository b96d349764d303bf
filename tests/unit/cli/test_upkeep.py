"""``muster volumes fsck`` and ``gc`` on a real store."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from muster.volumes.folder import FolderStore

Run = Callable[..., Any]


def damage(store: FolderStore, *, same_size: bool) -> Path:
    """Change a byte of a committed file, or cut one off."""
    path = store.path("flights/model@1") / "card.md"
    path.chmod(0o644)
    path.write_bytes(b"A model" if same_size else b"a mode")
    path.chmod(0o444)
    return path


class TestFsck:
    def test_a_clean_store(self, muster: Run, history: FolderStore) -> None:
        answer = muster("volumes", "fsck")
        assert answer.code == 0
        assert answer.out.startswith("4 versions, 6 files")
        assert "contents were not read, --deep reads them" in answer.out
        assert "every version is as it was committed" in muster("volumes", "fsck", "--deep").out
        assert muster("volumes", "fsck", "--json").json()["clean"] is True

    def test_a_cut_file_is_named(self, muster: Run, history: FolderStore) -> None:
        damage(history, same_size=False)
        answer = muster("volumes", "fsck")
        assert answer.code == 1
        assert "volume://flights/model@1" in answer.out
        assert "card.md" in answer.out

    def test_of_a_version_a_few_problems_are_shown_and_each_advice_once(
        self, muster: Run, history: FolderStore, tmp_path: Path
    ) -> None:
        (tmp_path / "many").mkdir()
        for number in range(9):
            (tmp_path / "many" / str(number)).write_text("1")
        made = history.add("lab/many", tmp_path / "many")
        for path in history.path(made.address).iterdir():
            path.chmod(0o666)
        said = muster("volumes", "fsck").out
        assert (said.count("writable file"), said.count("retire this version")) == (5, 1)
        assert "lab/many@1: and 4 more; --json names all" in said

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
    def test_what_is_harmless_hides_no_damage(
        self, muster: Run, history: FolderStore, tmp_path: Path
    ) -> None:
        (tmp_path / "many").mkdir()
        for number in range(9):
            (tmp_path / "many" / str(number)).write_text("1")
        made = history.path(history.add("lab/many", tmp_path / "many").address)
        for path in made.iterdir():
            os.chown(path, 1234, -1)
        (made / "8").chmod(0o666)
        answer = muster("volumes", "fsck")
        assert answer.code == 1
        assert "writable file: '8'" in answer.out
        assert "retire this version" in answer.out

    def test_only_a_deep_check_finds_a_changed_byte(self, muster: Run, history: FolderStore) -> None:
        damage(history, same_size=True)
        assert muster("volumes", "fsck").code == 0
        answer = muster("volumes", "fsck", "--deep", "--json")
        assert answer.code == 1
        assert answer.json()["report"]["problems"][0]["where"] == "volume://flights/model@1"
        assert "4/4" in answer.err

    def test_records_that_an_earlier_muster_committed_are_named_and_protected(
        self, muster: Run, history: FolderStore
    ) -> None:
        for path in (history.layout.root / "commits").iterdir():
            document = json.loads(path.read_text())
            del document["records"]
            path.write_text(json.dumps(document))
        answer = muster("volumes", "fsck")
        assert answer.code == 0
        assert "the records of 4 versions are unprotected" in " ".join(answer.out.split())
        assert "muster volumes fsck --protect" in answer.out
        assert "unprotected" not in muster("volumes", "fsck", "--protect").out
        assert muster("volumes", "fsck").out.startswith("4 versions")
        record = history.layout.version("flights/model", 1) / "RECORD.json"
        record.chmod(0o644)
        record.write_text(record.read_text().replace("0.71", "0.91"))
        assert "RECORD.json was changed" in " ".join(muster("volumes", "fsck").out.split())

    def test_what_is_no_mirror_of_this_store_is_refused_while_nothing_is_damaged(
        self, muster: Run, history: FolderStore, tmp_path: Path
    ) -> None:
        FolderStore(tmp_path / "other")
        for name, says in {
            "nope": "nope is no mirror",
            "other": "other holds the versions of another store",
            f"file://{tmp_path}/empty": "empty holds no versions",
        }.items():
            answer = muster("volumes", "fsck", "--repair-from", name)
            assert answer.code == 1
            assert says in answer.err
        assert not (tmp_path / "nope").exists()
        muster("volumes", "mirror", "copy")
        assert muster("volumes", "fsck", "--repair-from", "copy").code == 0


class TestGc:
    @pytest.mark.parametrize("options", [[], ["--yes"]])
    def test_it_takes_nothing_from_a_damaged_store(
        self, muster: Run, history: FolderStore, options: list[str]
    ) -> None:
        damage(history, same_size=False)
        answer = muster("volumes", "gc", "--keep", "1", *options)
        assert answer.code == 1
        said = " ".join(answer.err.split())
        assert (
            "gc takes nothing while the store is damaged: volume://flights/model@1: 6 bytes instead of 7"
            in said
        )
        assert "muster volumes fsck" in said
        for number in (1, 2):  # they share the file
            muster("volumes", "retire", f"flights/model@{number}")
        assert muster("volumes", "gc", "--keep", "1", *options).code == 0

    def test_without_yes_it_only_shows_the_plan(self, muster: Run, history: FolderStore) -> None:
        answer = muster("volumes", "gc", "--keep", "1")
        assert answer.code == 0
        lines = {line.split()[0]: line for line in answer.out.splitlines() if line.startswith("volume://")}
        assert "goes" in lines["volume://flights/model@1"]
        assert "stays" in lines["volume://flights/model@2"]
        assert "\nwould delete 1 version (" in answer.out
        assert "--yes" in answer.err
        assert len(history.versions("flights/model")) == 2

    def test_yes_does_it_and_the_record_stays(self, muster: Run, history: FolderStore) -> None:
        answer = muster("volumes", "gc", "--keep", "1", "--yes", "--json")
        assert answer.json()["plan"]["versions"] == ["volume://flights/model@1"]
        fresh = FolderStore(history.layout.root)
        assert [version.number for version in fresh.versions("flights/model")] == [2]
        assert fresh.record("flights/model@1").params == {"epochs": 1}

    def test_a_pinned_version_stays_and_says_why(self, muster: Run, history: FolderStore) -> None:
        history.pin("flights/model@1", reason="in the paper")
        plan = muster("volumes", "gc", "--keep", "1", "--json").json()["plan"]
        assert plan["versions"] == []
        assert plan["kept"]["volume://flights/model@1"] == "pinned: in the paper"

    def test_a_young_version_stays_for_a_task_to_come(self, muster: Run, history: FolderStore) -> None:
        plan = muster("volumes", "gc", "--keep", "1", "--young-days", "0.5", "--json").json()["plan"]
        assert plan["versions"] == []
        assert plan["kept"]["volume://flights/model@1"].startswith("young")
        muster("volumes", "gc", "--keep", "1", "--young-days", "0.5", "--yes")
        assert len(history.versions("flights/model")) == 2

    @pytest.mark.parametrize("keep", ["0", "-1", "many"])
    def test_keep_is_one_or_more(self, keep: str, muster: Run) -> None:
        assert muster("volumes", "gc", "--keep", keep).code == 2

    def test_yes_says_how_much_of_each_volume_went(self, muster: Run, history: FolderStore) -> None:
        answer = muster("volumes", "gc", "--keep", "1", "--yes")
        assert answer.out.splitlines() == [
            "volume         versions deleted  size",
            "flights/model                 1  57 B",
            "deleted 1 version (57 B)",
        ]
        assert "not free yet" in answer.err
        again = muster("volumes", "gc", "--keep", "1", "--yes")
        assert (again.out, again.err) == ("deleted 0 versions (0 B)\n", "")

    @pytest.mark.parametrize("name", ["flights/features", "volume://flights/features"])
    def test_only_the_volumes_that_are_named(self, name: str, muster: Run, history: FolderStore) -> None:
        assert muster("volumes", "gc", name, "--keep", "1", "--json").json()["plan"]["versions"] == []
        muster("volumes", "gc", name, "--keep", "1", "--yes")
        assert len(history.versions("flights/model")) == 2
        plan = muster("volumes", "gc", "flights/model", name, "--keep", "1", "--json").json()["plan"]
        assert plan["versions"] == ["volume://flights/model@1"]

    @pytest.mark.parametrize("name", ["flights/nothing", "flights/model@1", "../x", ""])
    def test_what_is_no_volume_is_refused(self, name: str, muster: Run, history: FolderStore) -> None:
        answer = muster("volumes", "gc", "flights/model", name, "--keep", "1", "--yes")
        assert answer.code == 1
        assert f"no volume '{name}'" in answer.err
        assert "flights/features, flights/model" in answer.err
        assert len(history.versions("flights/model")) == 2


class TestGcOnAFullDisk:
    """Where this process has the store: a service has it in another, which tests/cluster/test_full_claim.py fills."""

    def test_on_a_disk_that_is_nearly_full_nothing_waits(
        self, muster: Run, history: FolderStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("muster.core.room.SCARCE_BYTES", 1 << 62)
        assert "their disk space is free" in muster("volumes", "gc", "--keep", "1", "--yes").err

    def test_now_frees_the_space_of_what_was_deleted_before_too(
        self, muster: Run, history: FolderStore
    ) -> None:
        muster("volumes", "gc", "flights/model", "--keep", "1", "--yes")
        assert any(history.layout.trash.iterdir())
        assert muster("volumes", "gc", "--now").code == 2
        answer = muster("volumes", "gc", "--yes", "--now")
        assert answer.code == 0
        assert "of disk space are free" in answer.err
        assert not any(history.layout.trash.iterdir())
