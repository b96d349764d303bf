"""What a look at versions reads, and what it keeps: it reads again only what may have changed."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from muster.volumes import catalog
from muster.volumes.base import Record
from muster.volumes.folder import FolderStore
from muster.volumes.layout import Layout
from muster.volumes.manifest import Head


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


@pytest.mark.slow
def test_of_many_records_the_last_ones_are_kept_in_memory_and_no_version_is_read_twice(
    store: FolderStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    opened: Callable[[Callable[[], object]], list[str]],
) -> None:
    for _ in range(9):
        store.add("raw/rows", tmp_path / "rows")
    monkeypatch.setattr(catalog, "RECORDS", 5)
    again = FolderStore(store.layout.root)
    before = records_in_memory()
    assert len(again.versions("raw/rows")) == 12
    assert records_in_memory() - before <= 5
    assert not [path for path in opened(lambda: again.versions("raw/rows")) if "RECORD" in path]
    assert again.record("raw/rows@1").number == 1


@pytest.mark.slow
def test_of_more_versions_than_fit_all_are_read_and_the_facts_of_few_are_kept(
    store: FolderStore,
    monkeypatch: pytest.MonkeyPatch,
    opened: Callable[[Callable[[], object]], list[str]],
) -> None:
    monkeypatch.setattr(catalog, "FACTS", 2)
    monkeypatch.setattr(catalog, "RECORDS", 1)
    again = FolderStore(store.layout.root)
    before = heads_in_memory()
    for _ in range(2):
        assert [version.number for version in again.versions("raw/rows")] == [1, 2, 3]
        assert heads_in_memory() - before <= 2 + 1  # and that of the one record
    again.resolve("raw/rows@3")
    assert not [path for path in opened(lambda: again.resolve("raw/rows@3")) if "RECORD" in path]


def heads_in_memory() -> int:
    gc.collect()
    return sum(type(each) is Head for each in gc.get_objects())


def records_in_memory() -> int:
    gc.collect()
    return sum(type(each) is Record for each in gc.get_objects())


def test_versions_that_gc_deleted_are_not_read_to_find_the_newest(
    store: FolderStore, opened: Callable[[Callable[[], object]], list[str]]
) -> None:
    store.collect(keep_last=1)
    again = FolderStore(store.layout.root)
    seen = opened(lambda: (again.newest("raw/rows", limit=20), again.versions("raw/rows")))
    assert [path for path in seen if path.endswith("RECORD.json")] == [
        str(store.layout.version("raw/rows", 3) / "RECORD.json")
    ]


def test_no_such_volume(store: FolderStore) -> None:
    assert store.count("no/such") == 0


def test_a_look_that_a_commit_overtakes_sees_the_version_that_replaces_the_others(
    store: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = Layout.numbers

    def overtaken(layout: Layout, volume: str) -> list[int]:
        found = listed(layout, volume)
        monkeypatch.setattr(Layout, "numbers", listed)
        store.add(volume, tmp_path / "rows")
        for number in found:
            store.retire(f"{volume}@{number}", reason=f"replaced by {volume}@4")
        return found

    monkeypatch.setattr(Layout, "numbers", overtaken)
    assert [version.number for version in store.resolve("raw/rows@latest")] == [4]
