"""``muster jobs gc`` and ``get``, and how much room there is, on a real store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.contract.test_store import end_by, staged

from muster.core.room import Room
from muster.core.settings import Settings
from muster.core.verdict import Cause
from muster.volumes.folder import FolderStore

Run = Callable[..., Any]


@pytest.fixture
def failed(home: Path) -> str:
    """A job that wrote what could not be committed."""
    store = FolderStore(Settings.load({"MUSTER_HOME": str(home)}).store)
    staging = staged(store, "a-1", {"features": {"model.pt": b"abc"}})
    (staging.checkpoints / "epoch-1").write_bytes(b"x" * 2048)
    end_by(store, "a-1", Cause.USER_ERROR)
    return "a-1"


def test_gc_shows_what_a_job_holds_and_deletes_it(muster: Run, failed: str) -> None:
    shown = muster("jobs", "gc")
    assert failed in shown.out
    assert "2.0 KiB" in shown.out
    assert "nothing was deleted" in shown.err
    assert " free of " in shown.err
    assert muster("jobs", "gc", "--yes", "--json").json()["freed_bytes"] > 2048
    assert "no ended job keeps any files" in muster("jobs", "gc").err


def test_get_fetches_what_it_wrote(muster: Run, failed: str, tmp_path: Path) -> None:
    assert muster("jobs", "get", failed, str(tmp_path / "written")).code == 0
    assert (tmp_path / "written/main-0/features/model.pt").read_bytes() == b"abc"
    again = muster("jobs", "get", failed, str(tmp_path / "written"))
    assert "already exists" in again.err


@pytest.mark.usefixtures("failed")
@pytest.mark.parametrize("words", [("queue",), ("volumes", "fsck")])
def test_a_disk_that_is_nearly_full_is_said_before(
    muster: Run, monkeypatch: pytest.MonkeyPatch, words: Any
) -> None:
    room = Room(disk="the disk at /mnt", free_bytes=1 << 20, total_bytes=1 << 30)
    monkeypatch.setattr(FolderStore, "room", lambda _: room)
    answer = muster(*words)
    assert "the disk at /mnt has 1.0 MiB free of 1.0 GiB" in answer.out + answer.err
    assert ("`muster jobs gc`" in answer.err) is (words == ("queue",))
    monkeypatch.setattr(FolderStore, "room", lambda _: replace(room, free_bytes=1 << 40))
    assert "jobs fail" not in muster("queue").err
