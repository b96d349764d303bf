"""The notes of fsck, gc and sweeps: what damage they tell, and what becomes of a note that is damaged itself."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from muster.core.errors import Corrupt
from muster.volumes.base import UpkeepKind
from muster.volumes.folder import FolderStore


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "store")


def test_a_note_tells_what_the_check_found(store: FolderStore, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1\n")
    version = store.add("raw/rows", tmp_path / "a.csv")
    data = store.path(version.address) / "a.csv"
    data.chmod(0o644)
    data.write_text("2\n")
    data.chmod(0o444)
    store.check(deep=True)
    store.check()
    assert {note.work: note.checked and note.checked.damaged for note in store.upkept()} == {
        UpkeepKind.FSCK: 0,  # which compares no bytes
        UpkeepKind.FSCK_DEEP: 1,
    }


def test_gc_that_refuses_leaves_no_note(store: FolderStore, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1\n")
    version = store.add("raw/rows", tmp_path / "a.csv")
    (store.path(version.address) / "a.csv").parent.chmod(0o755)
    (store.path(version.address) / "a.csv").unlink()
    with pytest.raises(Corrupt, match="gc takes nothing"):
        store.collect()
    assert store.upkept() == []


def test_a_note_that_a_power_cut_emptied_is_none(store: FolderStore) -> None:
    store.note_sweep()
    (store.layout.upkeep / "sweep.json").write_bytes(b"")
    assert store.upkept() == []
    store.note_sweep()
    assert [note.work for note in store.upkept()] == [UpkeepKind.SWEEP]


def test_a_note_that_cannot_be_read_is_said_with_what_to_do(store: FolderStore) -> None:
    store.note_sweep()
    (store.layout.upkeep / "sweep.json").write_text("{")
    with pytest.raises(
        Corrupt, match=r"sweep\.json cannot be read: .*; delete it, the next sweep writes it anew"
    ):
        store.upkept()


def test_a_place_that_takes_no_note_fails_no_upkeep(
    store: FolderStore, caplog: pytest.LogCaptureFixture
) -> None:
    store.layout.upkeep.write_text("a file in the folder's place")
    with caplog.at_level(logging.WARNING):
        store.collect()
    assert "that gc has run cannot be noted" in caplog.text
