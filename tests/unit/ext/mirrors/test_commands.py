"""``muster volumes mirror`` and ``restore``: what they say, and how they end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from muster.core.errors import SpecError
from muster.ext.mirrors import opening as mirrors
from muster.volumes.folder import FolderStore

Run = Callable[..., Any]


def test_a_mirror_is_brought_up_and_read_by_scripts(
    muster: Run, history: FolderStore, tmp_path: Path
) -> None:
    first = muster("volumes", "mirror", tmp_path / "copy", "--volumes", "flights/model")
    assert (first.code, first.out) == (0, first.out)
    assert "versions brought (" in first.out
    again = muster("volumes", "mirror", tmp_path / "copy", "--json").json()
    assert again["whole"]
    assert {address.partition("@")[0] for address in again["versions"]} == {
        f"volume://{name}" for name in history.volumes() if name != "flights/model"
    }


def test_a_damaged_version_is_named_and_ends_with_1(
    muster: Run, history: FolderStore, tmp_path: Path
) -> None:
    path = history.path("flights/model@1") / "card.md"
    path.chmod(0o644)
    path.write_bytes(b"changed")
    answer = muster("volumes", "mirror", tmp_path / "copy")
    assert answer.code == 1
    assert "volume://flights/model@1 is damaged and was left out" in answer.out
    assert "card.md" in answer.out


def test_one_clear_error_for_what_is_no_mirror(muster: Run, history: FolderStore, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/file").write_text("1")
    (tmp_path / "link").symlink_to(tmp_path / ".muster/store/v")
    (tmp_path / "same").symlink_to(tmp_path / ".muster/store")
    muster("volumes", "mirror", tmp_path / "copy")
    for words, says in {
        ("mirror", tmp_path / "mine"): "name an empty folder or an existing store",
        ("mirror", "http://127.0.0.1:9"): "MUSTER_MIRROR_TOKEN is not set",
        ("mirror", "nosuch://bucket"): "cannot be opened",
        ("mirror", tmp_path / ".muster/store"): "cannot be a mirror of itself",
        ("mirror", tmp_path / "same"): "cannot be a mirror of itself",
        ("mirror", tmp_path / ".muster/store/sub"): "sub lies in the store",
        ("mirror", tmp_path / "link/sub"): "sub lies in the store",
        ("mirror", f"file://{tmp_path}/link/sub"): "sub lies in the store",
        ("mirror", tmp_path / ".muster/backup"): "backup lies in muster's folder",
        ("mirror", tmp_path / ".muster", "--plain"): ".muster holds the store",
        ("mirror", tmp_path / "mine/file"): "mine/file is a file: name a folder",
        ("mirror", tmp_path / "mine/file/below", "--plain"): "mine/file is a file: name a folder",
        ("mirror", tmp_path / "copy", "--plain"): "copy is a mirror that is a store",
        ("restore", "--from", tmp_path / "nowhere"): "is no mirror",
    }.items():
        answer = muster("volumes", *words)
        assert answer.code == 1
        assert says in answer.err
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["file"]
    assert not (history.layout.root / "sub").exists()


def test_what_only_one_side_has_is_named(muster: Run, history: FolderStore, tmp_path: Path) -> None:
    muster("volumes", "mirror", "copy", "--volumes", "flights/model")
    answer = muster("volumes", "restore", "--from", "copy")
    assert (
        "2 versions, such as volume://flights/features@1, are in this store, but not in copy: they stay"
        in answer.err
    )
    muster("volumes", "mirror", "copy")
    (tmp_path / "one").write_text("1")
    muster("volumes", "put", "one", "flights/one")
    answer = muster("volumes", "restore", "--from", "copy")
    assert "volume://flights/one@1 is in this store, but not in copy: it stays" in answer.err


def test_a_mirror_that_is_called_store_is_checked_as_any_store(
    muster: Run, history: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    muster("volumes", "mirror", "backup/store")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked/store").symlink_to(tmp_path / "backup/store")
    for home in ("backup", "linked"):
        monkeypatch.setenv("MUSTER_HOME", home)
        answer = muster("volumes", "fsck", "--deep")
        assert answer.code == 0
        assert "every version is as it was committed" in answer.out
    monkeypatch.setenv("MUSTER_HOME", "backup/store")
    answer = muster("volumes", "fsck", "--deep")
    assert answer.code == 1
    assert "backup/store is a store itself, and MUSTER_HOME names the folder above" in answer.err
    assert f"set it to {tmp_path}/backup\n" in answer.err
    (tmp_path / "backup/store").rename(tmp_path / "flat")
    monkeypatch.setenv("MUSTER_HOME", "flat")
    assert f"`ln -s {tmp_path}/flat FOLDER/store`" in muster("volumes", "fsck").err


def test_every_is_for_watch(muster: Run, history: FolderStore, tmp_path: Path) -> None:
    answer = muster("volumes", "mirror", "copy", "--every", "5")
    assert answer.code == 2
    assert "--every is for --watch" in answer.err
    assert not (tmp_path / "copy").exists()


def test_a_watch_goes_on_after_an_error(
    muster: Run, history: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []

    def opened(*words: Any, **named: Any) -> Any:
        looks.append(words)
        if len(looks) == 1:
            raise SpecError("the disk is unplugged")
        if len(looks) == 3:
            raise KeyboardInterrupt
        return open_home(*words, **named)

    open_home = mirrors.open_home
    monkeypatch.setattr(mirrors, "open_home", opened)
    monkeypatch.setattr("muster.ext.mirrors.commands.time.sleep", lambda _: None)
    answer = muster("volumes", "mirror", tmp_path / "copy", "--watch")
    assert "the disk is unplugged; the next look is in 60 s" in answer.err
    assert "versions brought" in answer.out
    assert len(looks) == 3


def test_without_a_terminal_there_is_no_line_for_each_version(
    muster: Run, history: FolderStore, tmp_path: Path
) -> None:
    for number in range(12):
        (tmp_path / "one").write_text(str(number))
        muster("volumes", "put", "one", "flights/one")
    answer = muster("volumes", "mirror", "copy")
    assert "versions brought" in answer.out
    assert len(answer.err.splitlines()) <= 4


def test_the_name_of_a_store_comes_back_from_its_mirror_alone(
    muster: Run, history: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    muster("volumes", "mirror", "copy")
    marker, uuid = history.layout.root / "VOLUME.json", history.layout.uuid
    (tmp_path / "one").write_text("1")
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path / "other"))
    muster("volumes", "put", "one", "flights/one")
    muster("volumes", "mirror", "foreign")
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path / ".muster"))
    flipped = marker.read_text().replace(uuid, "0" * 32)
    for damage in (marker.unlink, lambda: marker.write_text("{"), lambda: marker.write_text(flipped)):
        damage()
        assert "`muster volumes fsck --repair-from MIRROR`" in muster("volumes", "ls").err
        refused = muster("volumes", "fsck", "--repair-from", "foreign")
        assert (refused.code, "name the mirror of this store" in refused.err) == (1, True)
        answer = muster("volumes", "fsck", "--repair-from", "copy")
        assert answer.code == 0
        assert "VOLUME.json was written again after copy" in answer.err
        assert FolderStore(history.layout.root).layout.uuid == uuid


def test_a_damaged_commit_record_comes_back_from_a_mirror(
    muster: Run, history: FolderStore, tmp_path: Path
) -> None:
    muster("volumes", "mirror", "copy")
    job_id = history.record("flights/model@2").job_id
    path = history.layout.commit(job_id)
    for text in ("{", '{"outputs": {}, "records": {"d/x@2": "b3:0"}, "at": 1}'):
        path.write_text(text)
        found = muster("volumes", "fsck")
        assert found.code == 1
        assert "Error(" not in found.out
        assert "bring it from a mirror: muster volumes fsck --repair-from MIRROR" in found.out
        assert muster("volumes", "fsck", "--repair-from", "copy").code == 0
        assert muster("volumes", "fsck", "--deep").code == 0
        assert FolderStore(history.layout.root).resolve("flights/model@2")[0].number == 2


def test_a_forged_mirror_is_refused_where_a_digest_is_expected(
    muster: Run, history: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = history.resolve("flights/model@1")[0].digest
    muster("volumes", "mirror", "copy")
    (tmp_path / "one").write_text("forged")
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path / "forger"))
    muster("volumes", "put", "one", "flights/model")
    muster("volumes", "mirror", "forged")
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path / "new"))
    wanted = ("--expect", f"flights/model@1={digest}")
    refused = muster("volumes", "restore", "--from", "forged", *wanted)
    assert refused.code == 1
    assert f"{digest[:19]} was expected" in refused.err
    assert not (tmp_path / "new/store").exists()
    for text in ("flights/model@1", "flights/model@latest=b3:01234567", "flights/model@1=b3:0"):
        assert muster("volumes", "restore", "--from", "copy", "--expect", text).code == 2
    assert muster("volumes", "restore", "--from", "copy", *wanted).code == 0
    assert FolderStore(tmp_path / "new/store").resolve("flights/model@1")[0].digest == digest
