"""Versions that a store lacks are read from its mirror, and damaged ones are repaired from there."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.contract.mirrored import damage, facts, fill, mirror, put
from tests.unit.volumes.service.inside import Inside

from muster.backends.stores import folder_store, service_store
from muster.core.errors import Conflict, Corrupt, NotFound
from muster.core.settings import Settings
from muster.ext.mirrors.folder import FolderHome
from muster.ext.mirrors.opening import open_home
from muster.ext.mirrors.repair import repair
from muster.volumes.commit_records import read_commit, write_commit
from muster.volumes.folder import FolderStore
from muster.volumes.tree import remove

Opened = Callable[[], Any]


@pytest.fixture(params=["store", "open"])
def settings(tmp_path: Path, request: pytest.FixtureRequest) -> Settings:
    """A home whose store has lost flights/model@3 to gc, and a mirror that has kept it."""
    found = Settings(home=tmp_path / "home", cache=tmp_path / "cache", mirror=str(tmp_path / "mirror"))
    found.make_home()
    store = FolderStore(found.store)
    fill(store, tmp_path / "put")
    mirror(FolderHome(store), open_home(found.mirror, found, make=True, plain=request.param == "open"))
    put(store, tmp_path / "put", "flights/model", {"model": b"4"})
    store.collect(volumes=["flights/model"], keep_last=1)
    return found


@pytest.fixture
def source(settings: Settings) -> FolderStore:
    return FolderStore(settings.store)


def test_what_gc_deleted_is_read_from_the_mirror_with_a_line_in_the_log(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    before = facts(FolderStore(settings.store))
    store = folder_store(settings)
    with caplog.at_level(logging.WARNING):
        (version,) = store.resolve("flights/model@3")
        (same,) = store.resolve(f"flights/model@{version.digest}")
        assert (
            store.path("flights/model@3/model").read_bytes()
            == (store.path("flights/model@3") / "model").read_bytes()
        )
    assert (version, store.record("flights/model@3").digest) == (same, version.digest)
    assert store.manifest("flights/model@3").keys() == {"model"}
    store.lease(["volume://flights/model@3", "volume://flights/model@4"], holder="job-1")
    assert [line for line in caplog.messages if "flights/model@3 is not in this store: it is read" in line]
    assert facts(FolderStore(settings.store)) == before  # nothing was written
    store.close()


def test_a_version_that_the_store_never_had_is_read_whole(settings: Settings, source: FolderStore) -> None:
    remove(source.layout.version("flights/model", 3))
    store = folder_store(settings)
    assert store.record("flights/model@3").volume == "flights/model"
    assert store.manifest("flights/model@3").keys() == {"model"}
    assert (store.path("flights/model@3") / "model").is_file()


def test_the_mirror_of_another_store_is_refused(settings: Settings, tmp_path: Path) -> None:
    other = replace(settings, home=tmp_path / "other")
    other.make_home()
    store = folder_store(other)
    says = "mirror holds the versions of another store"
    for ask in (store.resolve, store.record, store.manifest, store.path):
        with pytest.raises(Conflict, match=f"{says}.*not of {other.store}.*MUSTER_MIRROR"):
            ask("flights/model@3")
    put(store, tmp_path / "put", "flights/model", {"model": b"own"})
    assert store.resolve("flights/model@1")[0].number == 1  # of its own the mirror is not asked
    with pytest.raises(Conflict, match=says):
        store.lease(["volume://flights/model@3"], holder="job-1")
    store.close()


def test_a_store_service_reads_from_its_own_mirror_alone(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "served").mkdir()
    with Inside(tmp_path / "served") as service:
        rules: dict[str, Any] = {
            "token": service.token(),
            "cache": tmp_path / "client",
            "patience_seconds": 60,
        }
        store = service_store(service.url, settings, **rules)
        with pytest.raises(Conflict, match=f"another store.*not of {service.url}"):
            store.manifest("flights/model@3")
        store.close()
        mirror(open_home(settings.mirror, settings), FolderHome(FolderStore(service.root)), adopt=True)
        remove(FolderStore(service.root).layout.version("flights/model", 3))
        store = service_store(service.url, settings, **rules)
        assert store.manifest("flights/model@3").keys() == {"model"}
        store.close()


def test_selectors_are_those_of_the_store_alone(settings: Settings) -> None:
    store = folder_store(settings)
    assert store.resolve("flights/model")[0].number == 4
    with pytest.raises(NotFound, match="flights/model@9"):
        store.resolve("flights/model@9")
    with pytest.raises(NotFound, match="flights/modal"):
        store.resolve("flights/modal@1")
    with pytest.raises(NotFound, match="no partitions"):
        store.resolve("flights/model@2013-01")


def test_a_mirror_that_is_away_is_named_beside_what_is_missing(settings: Settings, tmp_path: Path) -> None:
    store = folder_store(replace(settings, mirror=str(tmp_path / "unplugged")))
    with pytest.raises(
        NotFound, match=r"deleted by gc; .*its mirror cannot be asked: .*unplugged is no mirror"
    ):
        store.path("flights/model@3")


def test_damaged_versions_are_repaired_and_the_rest_is_named(
    settings: Settings, source: FolderStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = facts(source)
    damage(source.path("flights/features@3/big"), bytes(source.path("flights/features@3/big").stat().st_size))
    damage(source.path("flights/features@2/new"), b"xx")
    source.layout.discard(source.layout.version("flights/model", 2) / "data")
    damage(source.layout.version("flights/features", 1) / "RECORD.json", b"{}")
    damage(source.path("flights/model@4/model"), b"5")  # the mirror lacks this one
    broken = FolderStore(settings.store)
    done = repair(FolderHome(broken), open_home(settings.mirror, settings), broken.check(deep=True))
    assert set(done.versions) == {
        *(f"volume://flights/features@{n}" for n in (1, 2, 3)),
        "volume://flights/model@2",
    }
    assert list(done.left) == ["volume://flights/model@4"]
    (said,) = [line for line in caplog.messages if "big is not what was committed" in line]
    assert said.endswith("it is brought from the mirror")
    damage(source.path("flights/model@4/model"), b"4")
    assert facts(FolderStore(settings.store)) == before
    assert FolderStore(settings.store).check(deep=True).clean


def test_a_repair_keeps_what_a_commit_record_says_of_other_outputs(
    settings: Settings, source: FolderStore
) -> None:
    job_id = source.record("flights/features@3").job_id
    commit = read_commit(source.layout, job_id)
    assert commit is not None
    with_kept = replace(commit, kept={"index": [("flights/features", 2)]})
    write_commit(source.layout, job_id, with_kept)
    damage(source.path("flights/features@3/big"), b"short")
    broken = FolderStore(settings.store)
    done = repair(FolderHome(broken), open_home(settings.mirror, settings), broken.check(deep=True))
    assert done.versions == ["volume://flights/features@3"]
    assert read_commit(source.layout, job_id) == with_kept


@pytest.mark.parametrize("content", [b"there", b"here"], ids=["other bytes", "the same bytes"])
def test_a_version_that_two_stores_made_is_not_repaired_by_the_other(
    settings: Settings, tmp_path: Path, content: bytes
) -> None:
    home = open_home(settings.mirror, settings)
    twin = FolderStore(tmp_path / "twin")
    mirror(open_home(settings.mirror, settings), FolderHome(twin), adopt=True)
    twin_address = put(twin, tmp_path / "put", "flights/features", {"a": b"here", "b": b"own"})
    source = FolderStore(settings.store)
    assert put(source, tmp_path / "put", "flights/features", {"a": content, "b": b"own"}) == twin_address
    mirror(FolderHome(source), open_home(settings.mirror, settings))
    before = facts(FolderStore(tmp_path / "twin"))
    damage(twin.path(twin_address) / "b", b"bad")
    done = repair(FolderHome(twin), home, twin.check(deep=True))
    assert done.versions == []
    assert "two stores have given out this number" in done.left[f"volume://{twin_address}"]
    damage(twin.path(twin_address) / "b", b"own")
    assert facts(FolderStore(tmp_path / "twin")) == before
    assert FolderStore(tmp_path / "twin").check(deep=True).clean


def test_a_record_that_was_changed_in_the_mirror_replaces_none(
    settings: Settings, source: FolderStore
) -> None:
    record = Path(settings.mirror) / "flights/features/3/RECORD.json"
    if not record.is_file():
        return  # the mirror is a store, whose commit record refuses it
    damage(record, record.read_bytes()[:-1] + b',"note":"x"}')
    own = source.layout.version("flights/features", 3) / "RECORD.json"
    for damaged in (own.read_bytes(), b"{}"):
        damage(own, damaged)
        damage(source.path("flights/features@3/big"), b"short")
        broken = FolderStore(settings.store)
        done = repair(FolderHome(broken), open_home(settings.mirror, settings), broken.check(deep=True))
        assert re.search("another (record|RECORD.json)", done.left["volume://flights/features@3"])
        assert own.read_bytes() == damaged
        assert source.path("flights/features@3/big").read_bytes() == b"short"


def test_a_mirror_of_another_store_repairs_nothing(
    settings: Settings, source: FolderStore, tmp_path: Path
) -> None:
    other = FolderStore(tmp_path / "other")
    put(other, tmp_path / "put", "flights/features", {"a": b"1"})
    damage(source.path("flights/features@2/new"), b"xx")
    with pytest.raises(Conflict, match="another store"):
        repair(FolderHome(source), FolderHome(other), source.check(deep=True))


def test_bytes_that_were_changed_in_an_open_mirror_are_not_read(settings: Settings, tmp_path: Path) -> None:
    changed = tmp_path / "mirror/flights/model/3/data/model"
    if not changed.is_file():
        return  # the mirror is a store, which fsck checks
    changed.write_bytes(b"x" * 9000)
    with pytest.raises(Corrupt, match="model"):
        folder_store(settings).path("flights/model@3")
