"""Two that commit the same requests at once, each in a home of its own: no row is lost, and none is there twice."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from muster.backends.request_log import NotRetired, Predictions, unread
from muster.core.errors import BackendError, NotFound, StoreError
from muster.core.settings import Settings
from muster.volumes.base import Version
from muster.volumes.folder import FolderStore
from muster.volumes.protocols import LocalStore
from muster.volumes.spool import Spool

HOUR = "2026-11-26T07"
VOLUME = "flights/predictions"


class Reader:
    """A decoder whose rows are the names of the files. :param then: is called once, when it has read."""

    def __init__(self, then: Callable[[], object] = lambda: None) -> None:
        self._then: Callable[[], object] | None = then
        self.unread = 0
        self.keep: dict[str, float] | None = None

    def __call__(self, _module: str, *_: Any, order: Mapping[str, Any] | None = None, **__: Any) -> Any:
        assert order is not None
        before = set(rows(Path(order["earlier"]))) if order["earlier"] else set()
        names = {Path(file).name for file in order["spool"]}
        (Path(order["out"]) / "rows.json").write_text(json.dumps(sorted(before | names)))
        then, self._then = self._then, None
        if then:
            then()
        read = dict.fromkeys(sorted(names), 1)
        return {"rows": len(names - before), "read": read, "unread": self.unread, "keep": self.keep}


def rows(folder: Path) -> list[str]:
    found: list[str] = json.loads((folder / "rows.json").read_text())
    return found


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "store")


@pytest.fixture
def commit(store: FolderStore, tmp_path: Path) -> Callable[..., tuple[Version, ...]]:
    """Commits files that were fetched into a home of its own, as on a cluster."""

    def commit(home: str, *names: str, then: Callable[[], object] = lambda: None) -> tuple[Version, ...]:
        settings = replace(Settings.load(), home=tmp_path / home)
        spool = Spool(settings.home, "flights")
        spool.path.mkdir(parents=True, exist_ok=True)
        for name in names:
            (spool.path / f"{HOUR}.1-{name}.spool").touch()
        made = Predictions(settings, store, decoder=Reader(then)).commit("flights")
        assert not list(spool.path.glob("*.spool"))  # it may be dropped: a version has it
        return made

    return commit


def held(store: FolderStore) -> list[str]:
    """The rows of the version that readers find."""
    (version,) = store.resolve(f"volume://{VOLUME}@{HOUR}")
    return [name.split("-")[-1].removesuffix(".spool") for name in rows(store.path(version.address))]


def test_one_that_was_overtaken_adds_what_the_other_lacks(store: FolderStore, commit: Any) -> None:
    """The first has read `a` when the second commits `a` and `b`, and drops both."""
    commit("slow", "a", then=lambda: commit("fast", "a", "b"))
    assert held(store) == ["a", "b"]
    assert [one.retired is None for one in store.newest(VOLUME, limit=9)] == [False, True]


def test_one_that_was_overtaken_by_others_files_holds_both(store: FolderStore, commit: Any) -> None:
    commit("before", "0")
    made = commit("slow", "a", then=lambda: commit("fast", "b"))
    assert held(store) == ["0", "a", "b"]
    assert [one.address for one in made] == [store.resolve(f"volume://{VOLUME}@{HOUR}")[0].address]


def test_an_hour_that_cannot_be_committed_stops_no_other_and_what_cannot_be_read_is_told(
    store: FolderStore, tmp_path: Path
) -> None:
    class Failing(Reader):
        def __call__(
            self, module: str, *words: Any, order: Mapping[str, Any] | None = None, **more: Any
        ) -> Any:
            if order and "T07" in order["spool"][0]:
                raise BackendError("the disk is full")
            return super().__call__(module, *words, order=order, **more)

    settings, reader = replace(Settings.load(), home=tmp_path / "home"), Failing()
    spool = Spool(settings.home, "flights")
    spool.path.mkdir(parents=True)
    reader.unread = 2
    for hour in ("2026-11-26T06", HOUR, "2026-11-26T08"):
        (spool.path / f"{hour}.1-a.spool").touch()
    with pytest.raises(BackendError, match=r"T07 are not committed .the disk is full"):
        Predictions(settings, store, decoder=reader).commit("flights")
    (spool.path / "2026-11-26T08.1-b.spool").touch()
    (spool.path / f"{HOUR}.1-a.spool").unlink()
    Predictions(settings, store, decoder=reader).commit("flights")
    assert unread(store, "flights") == {f"volume://{VOLUME}@3": 4, f"volume://{VOLUME}@1": 2}
    assert unread(store, "other") == {}


def test_another_hour_is_no_other(store: FolderStore, commit: Any) -> None:
    def elsewhere() -> None:
        store.add(VOLUME, Path(__file__), partition="2026-11-26T08")

    commit("slow", "a", then=elsewhere)
    assert [one.retired for one in store.newest(VOLUME, limit=9)] == [None, None]
    assert held(store) == ["a"]


@pytest.mark.parametrize("keep", [{"keep_partitions": 1}, {"partition_days": 1e-9}])
def test_a_commit_retires_the_hours_that_the_log_keeps_no_more_and_gc_deletes_them(
    store: FolderStore, tmp_path: Path, keep: dict[str, float]
) -> None:
    for partition in ("2026-11-26T05", "2026-11-26T06"):
        store.add(VOLUME, Path(__file__), partition=partition)
    store.pin(f"volume://{VOLUME}@2", reason="it is looked into")
    settings, reader = replace(Settings.load(), home=tmp_path / "home"), Reader()
    (folder := Spool(settings.home, "flights").path).mkdir(parents=True)
    for name, reader.keep in (("a", None), ("b", keep)):
        (folder / f"{HOUR}.1-{name}.spool").touch()
        Predictions(settings, store, decoder=reader).commit("flights")
    assert {each.number: each.retired for each in store.versions(VOLUME)} == {
        1: "its request log keeps only younger hours",
        **dict.fromkeys((2, 3, 4)),
    }
    assert [each.number for each in store.collect().plan.versions] == [1]


class Trouble:
    """A store of which gc deletes a version that is being retired, or whose disk is full then. :param error: what retiring raises."""

    def __init__(self, store: FolderStore, error: StoreError, *, of: int) -> None:
        self._store, self._error, self._of = store, error, of
        self.read = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def versions(self, volume: str) -> list[Version]:
        self.read += 1
        return self._store.versions(volume)

    def retire(self, address: str, *, reason: str) -> Version:
        if address.endswith(f"@{self._of}"):
            raise self._error
        return self._store.retire(address, reason=reason)


def three_hours(store: FolderStore, folder: Path, error: StoreError) -> tuple[Predictions, Trouble, Spool]:
    """Two old hours, of which the first makes trouble, and three that are spooled."""
    for partition in ("2026-11-26T01", "2026-11-26T02"):
        store.add(VOLUME, Path(__file__), partition=partition)
    settings, reader = replace(Settings.load(), home=folder / "home"), Reader()
    reader.keep = {"keep_partitions": 3}
    spool = Spool(settings.home, "flights")
    spool.path.mkdir(parents=True)
    for hour in ("2026-11-26T06", HOUR, "2026-11-26T08"):
        (spool.path / f"{hour}.1-a.spool").touch()
    trouble = Trouble(store, error, of=1)
    return Predictions(settings, cast("LocalStore", trouble), decoder=reader), trouble, spool


def test_an_hour_that_gc_deletes_just_then_stops_neither_commit_nor_the_other_hours_end(
    store: FolderStore, tmp_path: Path
) -> None:
    predictions, trouble, spool = three_hours(store, tmp_path, NotFound("gc deleted it"))
    assert [each.number for each in predictions.commit("flights")] == [3, 4, 5]
    assert (trouble.read, list(spool.path.glob("*.spool"))) == (1, [])
    assert [each.retired is None for each in store.versions(VOLUME)] == [True, False, True, True, True]


def test_that_old_hours_are_not_retired_is_told_apart_from_the_commit(
    store: FolderStore, tmp_path: Path
) -> None:
    predictions, _, spool = three_hours(store, tmp_path, StoreError("the disk is full"))
    with pytest.raises(
        NotRetired, match=r"^the requests of flights are committed, but .*: the disk is full$"
    ):
        predictions.commit("flights")
    assert ([each.number for each in store.versions(VOLUME)], list(spool.path.glob("*.spool"))) == (
        [1, 2, 3, 4, 5],
        [],
    )


def test_an_hour_that_the_store_refuses_stops_no_other(
    store: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictions, _, spool = three_hours(store, tmp_path, StoreError("the disk is full"))
    add = store.add

    def refuse(*words: Any, partition: str, **more: Any) -> Version:
        if partition == HOUR:
            raise StoreError("no room")
        return add(*words, partition=partition, **more)

    monkeypatch.setattr(store, "add", refuse)
    with pytest.raises(BackendError, match=r"T07 are not committed .no room.*not retired: the disk is full"):
        predictions.commit("flights")
    assert [file.name for file in spool.path.glob("*.spool")] == [f"{HOUR}.1-a.spool"]
