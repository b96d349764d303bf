"""Counting versions: looked at again only where one came or went, and never wrong for it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from muster.volumes.folder import FolderStore


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    made = FolderStore(tmp_path / "store")
    (tmp_path / "rows").write_text("1")
    for _ in range(3):
        made.add("raw/rows", tmp_path / "rows")
    return made


def settle(store: FolderStore) -> None:
    """Let a minute pass since the last change."""
    for folder in (store.layout.volume("raw/rows"), store.layout.trash):
        then = folder.stat().st_mtime - 60
        os.utime(folder, (then, then))


def test_a_count_is_kept_until_a_version_comes_or_goes(
    store: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle(store)
    assert store.count("raw/rows") == 3
    with monkeypatch.context() as patch:
        patch.setattr(os.path, "isdir", lambda path: pytest.fail(f"{path} was looked at again"))
        assert store.count("raw/rows") == 3
    store.layout.delete(store.layout.version("raw/rows", 2) / "data")
    assert store.count("raw/rows") == 2
    settle(store)
    assert store.count("raw/rows") == 2
    store.add("raw/rows", tmp_path / "rows")
    assert store.count("raw/rows") == 3


def test_a_count_of_what_has_just_changed_is_not_kept(store: FolderStore) -> None:
    """A second change may fall into the same tick of the file system's clock."""
    volume, trash = store.layout.volume("raw/rows"), store.layout.trash
    assert store.count("raw/rows") == 3
    times = [(folder, folder.stat()) for folder in (volume, trash)]
    store.layout.delete(store.layout.version("raw/rows", 1) / "data")
    for folder, before in times:
        os.utime(folder, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert store.count("raw/rows") == 2


def test_no_such_volume(store: FolderStore) -> None:
    assert store.count("no/such") == 0
