"""What every mirror promises: a folder store, a store service, and an open layout on fsspec."""

from __future__ import annotations

import builtins
import errno
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.contract.mirrored import assert_restores, bytes_of, damage, facts, fill, lose, mirror, put
from tests.unit.volumes.service.inside import Inside
from tests.unit.volumes.service.process import Service

from muster.core.errors import Conflict, Corrupt, NotFound, SpecError, StoreError
from muster.ext.mirrors import copying, delta, publishing, service as mirroring, service_home
from muster.ext.mirrors.base import Holding, Home, VersionDocuments
from muster.ext.mirrors.copying import Copying
from muster.ext.mirrors.folder import FolderHome
from muster.ext.mirrors.open_layout import OpenHome
from muster.ext.mirrors.repair import repair
from muster.ext.mirrors.service_home import ServiceHome
from muster.volumes.commit_records import Place, read_commit, write_commit
from muster.volumes.folder import FolderStore
from muster.volumes.manifest import render
from muster.volumes.tree import remove

Open = Callable[[], Home]


def change_there(home: Home, place: Place, path: str, data: bytes | None) -> None:
    """Change a file of a version in a mirror, or have it lost."""
    if isinstance(home, OpenHome):
        name = f"{place[0]}/{place[1]}/data/{path}"
        home.objects.remove(name)
        if data is not None:
            home.objects.put(name, data)
        return
    root = home.root if isinstance(home, Served) else Path(home.where)
    file = root / "v" / place[0] / str(place[1]) / "data" / path
    if data is None:
        lose(file)
    else:
        damage(file, data)


class Served(ServiceHome):
    """A store service whose folder is known."""

    root: Path


class MirrorContract:
    """Inherit it and give a fixture `opened`: a function that opens the same target each time."""

    @pytest.fixture
    def source(self, tmp_path: Path) -> FolderStore:
        store = FolderStore(tmp_path / "source")
        fill(store, tmp_path / "put")
        return store

    def test_all_versions_come_with_numbers_digests_records_and_marks(
        self, source: FolderStore, opened: Open, tmp_path: Path
    ) -> None:
        done = mirror(FolderHome(source), opened())
        assert done.whole
        assert len(done.versions) == 6
        assert opened().holdings() == FolderHome(source).holdings()
        assert_restores(source, opened(), tmp_path / "restored")

    def test_a_second_run_has_nothing_to_do(self, source: FolderStore, opened: Open) -> None:
        mirror(FolderHome(source), opened())
        again = mirror(FolderHome(source), opened())
        assert (again.versions, again.sent_bytes, again.present, again.marked) == ([], 0, 6, 0)

    def test_only_missing_content_travels(self, source: FolderStore, opened: Open, tmp_path: Path) -> None:
        mirror(FolderHome(source), opened())
        same = bytes_of("big", 3 << 20)
        put(source, tmp_path / "put", "flights/features", {"big": same, "more": b"12345"})
        assert mirror(FolderHome(source), opened()).sent_bytes == 5

    def test_marks_and_deletions_follow(self, source: FolderStore, opened: Open, tmp_path: Path) -> None:
        mirror(FolderHome(source), opened())
        source.unpin("flights/model@2", reason="in the paper")
        source.pin("flights/features@2", reason="by hand")
        source.reinstate("flights/features@1")
        source.retire("flights/model@3", reason="bad")
        source.unpin("flights/model@2", reason="deployment/flights")
        source.collect(volumes=["flights/model"], keep_last=1)
        done = mirror(FolderHome(source), opened())
        assert (done.marked, done.sent_bytes) == (4, 0)
        assert opened().holdings() == FolderHome(source).holdings()
        assert_restores(source, opened(), tmp_path / "restored")

    def test_what_is_deleted_there_takes_no_space_where_that_is_asked_for(
        self, source: FolderStore, opened: Open, tmp_path: Path
    ) -> None:
        def copies() -> list[Path]:
            data, here = bytes_of(1, 9000), (source.layout.root, tmp_path / "put")
            files = (
                each for each in tmp_path.rglob("*") if each.is_file() and not set(here) & set(each.parents)
            )
            return [each for each in files if each.read_bytes() == data]

        mirror(FolderHome(source), opened())
        for reason in ("deployment/flights", "in the paper"):
            source.unpin("flights/model@2", reason=reason)
        source.collect(volumes=["flights/model"], keep_last=1)
        mirror(FolderHome(source), opened())
        mirror(FolderHome(source), opened(), now=True)
        assert copies() == []
        assert opened().holdings()["flights/model", 2].deleted
        source.upkeep.fold({}, before=0.0)
        assert mirror(FolderHome(source), opened()).marked == 0
        deleted = [
            {place: (each.digest, each.deleted) for place, each in home.holdings().items()}
            for home in (opened(), FolderHome(source))
        ]
        assert deleted[0] == deleted[1]

    @pytest.mark.parametrize("folded", [False, True])
    def test_what_gc_deleted_can_be_kept_and_brought_back(
        self, source: FolderStore, opened: Open, tmp_path: Path, folded: bool
    ) -> None:
        mirror(FolderHome(source), opened())
        before = facts(source)["volume://flights/model@3"]
        put(source, tmp_path / "put", "flights/model", {"model": b"4"})
        source.collect(volumes=["flights/model"], keep_last=1)
        if folded:
            source.upkeep.fold({}, before=0.0)
        mirror(FolderHome(source), opened(), keep_deleted=True)
        with pytest.raises(NotFound, match="deleted by gc"):
            source.resolve("flights/model@3")
        done = mirror(opened(), FolderHome(source), adopt=True, keep_deleted=True)
        assert done.versions == ["volume://flights/model@3"]
        assert facts(FolderStore(source.layout.root))["volume://flights/model@3"] == before
        assert source.check(deep=True).clean
        for _ in range(2):
            source.collect(keep_last=1, now=True)
        with pytest.raises(NotFound, match="deleted by gc"):
            source.resolve("flights/model@3")

    @pytest.mark.parametrize("since", ["pinned", "retired", "reinstated"])
    def test_what_came_back_from_another_mirror_comes_back_here_with_its_marks(
        self, source: FolderStore, opened: Open, tmp_path: Path, since: str
    ) -> None:
        other = FolderStore(tmp_path / "other")
        for home in (opened(), FolderHome(other)):
            mirror(FolderHome(source), home)
        if since == "reinstated":
            source.retire("flights/model@3", reason="bad")
        put(source, tmp_path / "put", "flights/model", {"model": b"4"})
        source.collect(volumes=["flights/model"], keep_last=1)
        mirror(FolderHome(source), opened())
        mirror(FolderHome(source), FolderHome(other), keep_deleted=True)
        done = mirror(FolderHome(other), FolderHome(source), adopt=True)
        assert done.versions == ["volume://flights/model@3"]
        if since == "pinned":
            source.pin("flights/model@3", reason="again")
        elif since == "retired":
            source.retire("flights/model@3", reason="again")
        else:
            source.reinstate("flights/model@3")
        new = put(source, tmp_path / "put", "flights/model", {"model": b"5"})
        done = mirror(FolderHome(source), opened())
        assert done.whole
        assert set(done.versions) == {"volume://flights/model@3", f"volume://{new}"}
        assert opened().holdings() == FolderHome(source).holdings()
        assert_restores(source, opened(), tmp_path / "restored")

    def test_what_is_put_back_has_the_marks_of_the_mirror(
        self, source: FolderStore, opened: Open, tmp_path: Path
    ) -> None:
        """The store itself had no pin on it any more when gc took it, and had retired another one."""
        source.retire("flights/model@2", reason="bad: ä")
        mirror(FolderHome(source), opened())
        wanted = {f"volume://flights/model@{number}" for number in (2, 3)}
        before = {address: found for address, found in facts(source).items() if address in wanted}
        source.reinstate("flights/model@2")
        for reason in ("deployment/flights", "in the paper"):
            source.unpin("flights/model@2", reason=reason)
        source.retire("flights/model@3", reason="since then")
        put(source, tmp_path / "put", "flights/model", {"model": b"4"})
        source.collect(volumes=["flights/model"], keep_last=1)
        done = mirror(opened(), FolderHome(source), adopt=True)
        assert set(done.versions) == wanted
        assert {address: found for address, found in facts(source).items() if address in wanted} == before
        kept = source.plan(volumes=["flights/model"], keep_last=1).kept
        assert "pinned" in kept["volume://flights/model@2"]
        assert source.check(deep=True).clean

    def test_a_version_whose_marks_cannot_be_set_is_named_and_the_others_come(
        self, source: FolderStore, opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        mirror(FolderHome(source), opened())
        for number in (2, 3):
            source.pin(f"flights/features@{number}", reason="since then")
        new = put(source, tmp_path / "put", "flights/model", {"model": b"4"})
        home = opened()
        mark = home.mark

        def fails(place: Place, holding: Holding) -> None:
            if place == ("flights/features", 2):
                raise Corrupt("its record is torn")
            mark(place, holding)

        monkeypatch.setattr(home, "mark", fails)
        done = mirror(FolderHome(source), home)
        assert set(done.damaged) == {"volume://flights/features@2"}
        assert "its record is torn" in done.damaged["volume://flights/features@2"]
        assert (done.versions, done.marked) == ([f"volume://{new}"], 1)
        assert opened().holdings()["flights/features", 3].pins == ("since then",)
        assert mirror(FolderHome(source), opened()).whole
        assert opened().holdings() == FolderHome(source).holdings()

    def test_deletions_travel_before_what_may_have_no_room(
        self, source: FolderStore, opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        mirror(FolderHome(source), opened())
        source.retire("flights/model@3", reason="bad")
        for number in (4, 5):
            put(source, tmp_path / "put", "flights/model", {"model": bytes([number])})
        source.collect(volumes=["flights/model"], keep_last=1)
        home = opened()

        def full(*given: Any, **more: Any) -> None:
            raise StoreError("No space left on device")

        monkeypatch.setattr(home, "receive", full)
        with pytest.raises(StoreError, match="No space"):
            mirror(FolderHome(source), home)
        gone = Holding(FolderHome(source).holdings()["flights/model", 3].digest, deleted=True, retired="bad")
        assert opened().holdings()["flights/model", 3] == gone
        assert mirror(FolderHome(source), opened()).marked == 0

    def test_a_restore_changes_no_mark_of_what_is_there(self, source: FolderStore, opened: Open) -> None:
        mirror(FolderHome(source), opened())
        source.pin("flights/model@3", reason="since then")
        source.retire("flights/features@3", reason="since then")
        before = facts(source)
        done = mirror(opened(), FolderHome(source), adopt=True, keep_deleted=True)
        assert (done.versions, done.marked) == ([], 0)
        assert facts(FolderStore(source.layout.root)) == before

    def test_some_volumes_alone_and_then_the_rest(
        self, source: FolderStore, opened: Open, tmp_path: Path
    ) -> None:
        done = mirror(FolderHome(source), opened(), volumes=["flights/model"])
        assert {address.partition("@")[0] for address in done.versions} == {"volume://flights/model"}
        with pytest.raises(NotFound, match="flights/model"):
            mirror(FolderHome(source), opened(), volumes=["flights/modal"])
        mirror(FolderHome(source), opened())
        assert_restores(source, opened(), tmp_path / "restored")

    def test_a_volume_is_restored_without_those_below_it(
        self, source: FolderStore, opened: Open, tmp_path: Path
    ) -> None:
        put(source, tmp_path / "put", "flights", {"all": b"1"})
        mirror(FolderHome(source), opened())
        assert list(opened().holdings(["flights"])) == [("flights", 1)]
        restored = FolderHome(FolderStore(tmp_path / "restored"))
        done = mirror(opened(), restored, adopt=True, volumes=["flights"])
        assert done.versions == ["volume://flights@1"]

    def test_another_store_is_refused_and_changes_nothing(
        self, source: FolderStore, opened: Open, tmp_path: Path
    ) -> None:
        mirror(FolderHome(source), opened())
        other = FolderStore(tmp_path / "other")
        put(other, tmp_path / "put", "flights/model", {"model": b"1"})
        with pytest.raises(Conflict, match=r"another store.*name an empty place"):
            mirror(FolderHome(other), opened())
        assert opened().holdings() == FolderHome(source).holdings()
        before = facts(other)
        with pytest.raises(
            Conflict,
            match=f"^the mirror holds.*not of {other.layout.root} .*restore from the mirror of this store",
        ):
            mirror(opened(), FolderHome(other), adopt=True)
        assert facts(other) == before

    def test_one_number_given_out_twice_is_refused(
        self, source: FolderStore, opened: Open, tmp_path: Path
    ) -> None:
        mirror(FolderHome(source), opened())
        twin = assert_restores(source, opened(), tmp_path / "twin")
        put(source, tmp_path / "put", "flights/model", {"model": b"here"})
        put(twin, tmp_path / "put", "flights/model", {"model": b"there"})
        mirror(FolderHome(source), opened())
        with pytest.raises(Conflict, match="two stores have given out this number"):
            mirror(FolderHome(twin), opened())

    def test_a_damaged_version_is_named_and_the_others_come(self, source: FolderStore, opened: Open) -> None:
        damage(source.path("flights/features@2/new"), b"xx")
        damage(source.layout.version("flights/model", 2) / "MANIFEST", b"torn")
        done = mirror(FolderHome(source), opened())
        assert set(done.damaged) == {"volume://flights/features@2", "volume://flights/model@2"}
        assert not done.whole
        assert len(opened().holdings()) == 4

    @pytest.mark.parametrize("large", [False, True])
    def test_a_version_that_lacks_a_file_is_named_and_the_others_come(
        self, source: FolderStore, opened: Open, tmp_path: Path, large: bool
    ) -> None:
        rows = bytes_of("rows", 2 << 20 if large else 2000)
        put(source, tmp_path / "put", "flights/table", {"rows": rows})
        mirror(FolderHome(source), opened())
        for number in (2, 3):
            put(source, tmp_path / "put", "flights/table", {"rows": rows + bytes([number])})
        lose(source.path("flights/table@2") / "rows")
        for _ in range(2):
            done = mirror(FolderHome(source), opened())
            assert set(done.damaged) == {"volume://flights/table@2"}
            assert "is gone" in done.damaged["volume://flights/table@2"]
            assert ("flights/table", 3) in opened().holdings()

    def test_a_version_whose_record_is_torn_is_named_and_the_others_come(
        self, source: FolderStore, opened: Open
    ) -> None:
        damage(source.layout.version("flights/model", 2) / "RECORD.json", b"")
        done = mirror(FolderHome(source), opened())
        assert set(done.damaged) == {"volume://flights/model@2"}
        assert len(opened().holdings()) == 5

    def test_a_version_that_cannot_be_read_from_its_disk_is_named_and_the_others_come(
        self, source: FolderStore, opened: Open, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        broken = str(source.path("flights/features@2/new"))
        real_open, real_builtin = os.open, builtins.open
        failed = OSError(errno.EIO, os.strerror(errno.EIO), broken)

        def failing(real: Callable[..., Any], path: Any, *given: Any, **more: Any) -> Any:
            if str(path) == broken:
                raise failed
            return real(path, *given, **more)

        monkeypatch.setattr(os, "open", partial(failing, real_open))
        monkeypatch.setattr(builtins, "open", partial(failing, real_builtin))
        done = mirror(FolderHome(source), opened())
        assert set(done.damaged) == {"volume://flights/features@2"}
        assert len(opened().holdings()) == 5

    def test_what_gc_takes_meanwhile_is_not_damaged(self, source: FolderStore, opened: Open) -> None:
        class Collected(FolderHome):
            def documents(self, place: Place) -> VersionDocuments:
                found = super().documents(place)
                if place == ("flights/model", 2) and not found.holding.deleted:
                    source.upkeep.bury(source.catalog.described(*place))
                return found

        done = mirror(Collected(source), opened())
        assert done.whole
        assert "volume://flights/model@2" not in done.versions
        mirror(FolderHome(source), opened())
        assert opened().holdings()["flights/model", 2].deleted

    def test_damaged_code_leaves_its_versions_whole(
        self, source: FolderStore, opened: Open, tmp_path: Path
    ) -> None:
        (tmp_path / "code").mkdir()
        (tmp_path / "code/train.py").write_text("pass\n")
        digest = source.put(tmp_path / "code", ["train.py"])

        class OfThatCode(FolderHome):
            def documents(self, place: Place) -> VersionDocuments:
                found = super().documents(place)
                found.__dict__["origin"] = replace(found.origin, code=digest)
                return found

            def code(self, digest: str) -> Path | None:
                raise Corrupt(f"code snapshot {digest} lacks a file")

        done = mirror(OfThatCode(source), opened())
        assert set(done.damaged) == {f"code snapshot {digest}"}
        assert len(done.versions) == 6

    def test_what_the_mirror_lost_is_named_and_the_others_are_restored(
        self, source: FolderStore, opened: Open, tmp_path: Path
    ) -> None:
        mirror(FolderHome(source), opened())
        change_there(opened(), ("flights/model", 3), "model", None)
        done = mirror(opened(), FolderHome(FolderStore(tmp_path / "restored")), adopt=True)
        assert set(done.damaged) == {"volume://flights/model@3"}
        assert len(done.versions) == 5

    @pytest.mark.parametrize("torn", ["MANIFEST", "RECORD.json", "the body of MANIFEST", "data"])
    def test_a_version_comes_after_one_that_was_damaged_since(
        self, source: FolderStore, opened: Open, tmp_path: Path, torn: str
    ) -> None:
        mirror(FolderHome(source), opened())
        folder = source.layout.version("flights/model", 3)
        if torn == "data":
            (folder / "data").chmod(0o755)
            (folder / "data").rename(tmp_path / "taken")
        elif torn == "the body of MANIFEST":
            damage(folder / "MANIFEST", (folder / "MANIFEST").read_bytes()[:-1])
        else:
            damage(folder / torn, b"torn")
        new = put(source, tmp_path / "put", "flights/model", {"model": b"4"})
        assert mirror(FolderHome(source), opened()).versions == [f"volume://{new}"]

    @pytest.mark.parametrize("batch", [256, 1])
    def test_what_arrives_wrong_is_named_and_the_next_run_brings_it(
        self,
        source: FolderStore,
        opened: Open,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        batch: int,
    ) -> None:
        monkeypatch.setattr(copying, "BATCH_VERSIONS", batch)
        for more in (b"1", b"2"):
            put(source, tmp_path / "put", "flights/table", {"rows": b"right", "more": more})
        home = opened()
        show = home.publish

        def show_wrong(versions: Sequence[VersionDocuments]) -> None:
            show(versions)
            if any(each.place == ("flights/table", 1) for each in versions):
                change_there(home, ("flights/table", 1), "rows", b"wrong")

        monkeypatch.setattr(home, "publish", show_wrong)
        done = mirror(FolderHome(source), home)
        assert not done.whole
        assert "changed content: 'rows'" in done.wrong["volume://flights/table@1"]
        assert not done.wrong.keys() & set(done.versions)
        put(source, tmp_path / "put", "flights/table", {"rows": b"right", "more": b"3"})
        again = mirror(FolderHome(source), opened())
        assert again.whole
        assert set(again.versions) == {*done.wrong, "volume://flights/table@3"}
        assert_restores(source, opened(), tmp_path / "restored")

    def test_what_was_made_visible_was_read_again_before_the_next_is(
        self, source: FolderStore, opened: Open, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A kill leaves the versions of one batch unread at most."""
        monkeypatch.setattr(copying, "BATCH_VERSIONS", 1)
        home, steps = opened(), list[tuple[str, Place]]()
        show, read = home.publish, home.verify

        def shown(versions: Sequence[VersionDocuments]) -> None:
            steps.extend(("shown", each.place) for each in versions)
            show(versions)

        def read_again(documents: VersionDocuments, **how: bool) -> list[str]:
            steps.append(("read", documents.place))
            return read(documents, **how)

        monkeypatch.setattr(home, "publish", shown)
        monkeypatch.setattr(home, "verify", read_again)
        mirror(FolderHome(source), home)
        assert [what for what, _ in steps] == ["shown", "read"] * 6
        assert [place for _, place in steps[::2]] == [place for _, place in steps[1::2]]

    def test_two_at_once_bring_each_version_whole(
        self, source: FolderStore, opened: Open, tmp_path: Path
    ) -> None:
        failed = list[BaseException]()

        def run() -> None:
            try:
                mirror(FolderHome(FolderStore(source.layout.root)), opened())
            except BaseException as error:  # the test looks at it
                failed.append(error)

        threads = [threading.Thread(target=run) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failed == []
        assert_restores(source, opened(), tmp_path / "restored")

    def test_code_comes_along(self, source: FolderStore, opened: Open, tmp_path: Path) -> None:
        (tmp_path / "code").mkdir()
        (tmp_path / "code/train.py").write_text("pass\n")
        digest = source.put(tmp_path / "code", ["train.py"])
        home = opened()
        home.own(FolderHome(source).owner())
        assert not home.holds_code(digest)
        home.put_code(digest, source.code(digest))
        assert home.holds_code(digest)
        lent = opened()
        folder = lent.code(digest)
        assert folder is not None
        assert FolderStore(tmp_path / "third").put(folder, ["train.py"]) == digest
        lent.close()


class TestFolder(MirrorContract):
    @pytest.fixture
    def opened(self, tmp_path: Path) -> Open:
        return lambda: FolderHome(FolderStore(tmp_path / "mirror"))

    def test_no_job_commits_to_a_mirror(self, source: FolderStore, opened: Open, tmp_path: Path) -> None:
        mirror(FolderHome(source), opened())
        with pytest.raises(Exception, match="is a mirror, whose numbers another store gives out"):
            put(FolderStore(tmp_path / "mirror"), tmp_path / "put", "flights/model", {"model": b"1"})

    def test_a_damaged_version_of_the_mirror_is_brought_again(
        self, source: FolderStore, opened: Open, tmp_path: Path
    ) -> None:
        mirror(FolderHome(source), opened())
        damage(tmp_path / "mirror/v/flights/model/3/MANIFEST", b"torn")
        assert mirror(FolderHome(source), opened()).versions == ["volume://flights/model@3"]
        assert FolderStore(tmp_path / "mirror").check(deep=True).clean

    def test_a_version_that_the_mirror_lost_and_gc_deleted_since_is_deleted_there(
        self, source: FolderStore, opened: Open, tmp_path: Path
    ) -> None:
        mirror(FolderHome(source), opened())
        remove(tmp_path / "mirror/v/flights/model/3/data")
        source.upkeep.bury(source.catalog.described("flights/model", 3))
        mirror(FolderHome(source), opened())
        assert opened().holdings() == FolderHome(source).holdings()
        assert mirror(FolderHome(source), opened()).versions == []
        assert FolderStore(tmp_path / "mirror").check(deep=True).clean

    def test_a_version_that_is_brought_again_has_the_marks_of_now(
        self, source: FolderStore, opened: Open, tmp_path: Path
    ) -> None:
        mirror(FolderHome(source), opened())
        there = tmp_path / "mirror/v/flights"
        for lost in ("model/2", "model/3", "features/1"):
            damage(there / lost / "MANIFEST", b"torn")
        remove(there / "model/2/pins")
        source.unpin("flights/model@2", reason="in the paper")
        source.pin("flights/model@2", reason="since then")
        source.retire("flights/model@3", reason="since then")
        source.reinstate("flights/features@1")
        assert len(mirror(FolderHome(source), opened()).versions) == 3
        assert opened().holdings() == FolderHome(source).holdings()
        assert mirror(FolderHome(source), opened()).marked == 0

    @pytest.mark.parametrize("how", ["restore", "repair"])
    def test_the_marks_on_a_damaged_version_of_the_store_are_its_own(
        self, source: FolderStore, opened: Open, how: str
    ) -> None:
        mirror(FolderHome(source), opened())
        source.unpin("flights/model@2", reason="in the paper")
        source.pin("flights/model@2", reason="since then")
        source.retire("flights/model@2", reason="since then")
        source.reinstate("flights/features@1")
        before = facts(source)
        for path in ("flights/model", 2), ("flights/features", 1):
            damage(source.layout.version(*path) / "MANIFEST", b"torn")
        if how == "restore":
            done = mirror(opened(), FolderHome(source), adopt=True)
            assert len(done.versions) == 2
        else:
            repair(FolderHome(source), opened(), source.check(deep=True))
        assert facts(FolderStore(source.layout.root)) == before

    def test_pins_that_a_damaged_version_of_the_store_lost_come_back(
        self, source: FolderStore, opened: Open
    ) -> None:
        mirror(FolderHome(source), opened())
        before, folder = facts(source), source.layout.version("flights/model", 2)
        damage(folder / "MANIFEST", b"torn")
        remove(folder / "pins")
        mirror(opened(), FolderHome(source), adopt=True)
        assert facts(FolderStore(source.layout.root)) == before

    def test_a_kill_while_a_version_is_put_back_leaves_it_deleted_or_with_its_pins(
        self, source: FolderStore, opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        mirror(FolderHome(source), opened())
        before = FolderHome(source).holdings()["flights/model", 2]
        put(source, tmp_path / "put", "flights/model", {"model": b"4"})
        left, states = [0], list[bool]()

        def until_killed(step: Callable[..., Any]) -> Callable[..., Any]:
            def stepped(*given: Any, **more: Any) -> Any:
                left[0] -= 1
                if left[0] == 0:
                    raise KeyboardInterrupt
                return step(*given, **more)

            return stepped

        for name in ("rename", "sync_folder", "write_whole"):
            monkeypatch.setattr(publishing, name, until_killed(getattr(publishing, name)))
        for steps in range(1, 100):
            for reason in before.pins:
                source.unpin("flights/model@2", reason=reason)
            source.collect(volumes=["flights/model"], keep_last=1)
            assert FolderHome(source).holdings()["flights/model", 2].deleted
            left[0] = steps
            with suppress(KeyboardInterrupt):
                mirror(opened(), FolderHome(source), adopt=True)
            found = FolderHome(FolderStore(source.layout.root)).holdings()["flights/model", 2]
            states.append(found.deleted)
            assert found.deleted or found == before, steps
            killed, left[0] = left[0] <= 0, 0
            mirror(opened(), FolderHome(source), adopt=True)
            assert FolderHome(source).holdings()["flights/model", 2] == before
            if not killed:
                break
        assert states.count(True) > 3
        assert states.count(False) > 1
        assert source.check(deep=True).clean

    def test_a_deleted_version_that_another_mirror_gives_up_is_brought(
        self, source: FolderStore, opened: Open, tmp_path: Path
    ) -> None:
        mirror(FolderHome(source), opened())
        FolderStore(tmp_path / "mirror").upkeep.bury(source.catalog.described("flights/model", 3))
        home, other = opened(), opened()
        assert isinstance(other, FolderHome)
        other.begin(FolderHome(source).documents(("flights/model", 3)), None)
        told = list[str]()

        def given_up(line: str) -> None:
            if line.startswith("waiting for 1 versions"):
                told.append(line)
                other.close()

        done = mirror(FolderHome(source), home, progress=given_up)
        assert told
        assert done.versions == ["volume://flights/model@3"]
        assert opened().holdings() == FolderHome(source).holdings()

    def test_what_gc_takes_while_another_mirror_holds_it_is_not_waited_for(
        self, source: FolderStore, opened: Open, tmp_path: Path
    ) -> None:
        mirror(FolderHome(source), opened())
        described = source.catalog.described("flights/model", 3)
        FolderStore(tmp_path / "mirror").upkeep.bury(described)
        other = opened()
        assert isinstance(other, FolderHome)
        other.begin(FolderHome(source).documents(("flights/model", 3)), None)

        def taken(line: str) -> None:
            if line.startswith("waiting for 1 versions"):
                source.upkeep.bury(described)
                other.close()

        done = mirror(FolderHome(source), opened(), progress=taken)
        assert (done.whole, done.versions) == (True, [])
        assert opened().holdings() == FolderHome(source).holdings()

    def test_a_mirror_of_itself_is_refused(self, source: FolderStore) -> None:
        with pytest.raises(SpecError, match="of itself"):
            mirror(FolderHome(source), FolderHome(source))

    def test_unchanged_files_are_links(self, source: FolderStore, opened: Open, tmp_path: Path) -> None:
        put(source, tmp_path / "put", "flights/features", {"big": bytes_of("big", 3 << 20)})
        mirror(FolderHome(source), opened())
        assert (tmp_path / "mirror/v/flights/features/3/data/big").stat().st_nlink == 2

    def test_what_another_process_received_is_read_whole(
        self, source: FolderStore, opened: Open, tmp_path: Path
    ) -> None:
        mirror(FolderHome(source), opened())
        documents, home = FolderHome(source).documents(("flights/features", 3)), opened()
        assert home.verify(documents) == []
        folder = tmp_path / "mirror/v/flights/features/3/data"
        damage(folder / "big", bytes_of("rotten", 3 << 20))
        assert home.verify(documents) == ["changed content: 'big'"]
        folder.chmod(0o755)
        (folder / "new").unlink()
        assert home.verify(documents) == ["missing file: 'new'", "changed content: 'big'"]

    def test_what_is_read_again_is_told_again(
        self, source: FolderStore, opened: Open, tmp_path: Path
    ) -> None:
        """As a service is asked whose answer was lost."""
        documents, home = FolderHome(source).documents(("flights/features", 3)), opened()
        home.own(FolderHome(source).owner())
        home.receive(documents, FolderHome(source), base=None, tell=lambda _: None)
        home.publish([documents])
        damage(tmp_path / "mirror/v/flights/features/3/data/new", b"bad")
        assert home.verify(documents) == home.verify(documents) == ["changed content: 'new'"]

    def test_a_commit_that_grows_is_read_again(
        self, source: FolderStore, opened: Open, tmp_path: Path
    ) -> None:
        """A service has one home for all that read from it, while versions of one commit arrive."""
        mirror(FolderHome(source), opened())
        home, layout = opened(), FolderStore(tmp_path / "mirror").layout
        job_id = source.record("flights/features@3").job_id
        commit = read_commit(layout, job_id)
        assert commit is not None
        write_commit(layout, job_id, replace(commit, outputs={}, records={}))
        with pytest.raises(Corrupt, match="did not commit it"):
            home.documents(("flights/features", 3))
        write_commit(layout, job_id, commit)
        assert home.documents(("flights/features", 3)).at == commit.at

    @pytest.mark.parametrize("when", ["before it is begun", "before it is visible"])
    def test_a_version_that_a_job_commits_during_a_restore_stays(
        self, source: FolderStore, opened: Open, tmp_path: Path, when: str
    ) -> None:
        mirror(FolderHome(source), opened())
        twin = FolderStore(tmp_path / "twin")
        mirror(opened(), FolderHome(twin), adopt=True)
        put(source, tmp_path / "put", "flights/model", {"model": b"there"})
        mirror(FolderHome(source), opened())
        documents, restored = opened().documents(("flights/model", 4)), FolderHome(twin)
        if when == "before it is visible":
            restored.receive(documents, opened(), base=None, tell=lambda _: None)
        put(FolderStore(tmp_path / "twin"), tmp_path / "put", "flights/model", {"model": b"here"})
        begin = partial(restored.receive, documents, opened(), base=None, tell=lambda _: None)
        step = begin if when == "before it is begun" else partial(restored.publish, [documents])
        with pytest.raises(Conflict, match="two stores have given out this number"):
            step()
        restored.close()
        assert (twin.path("flights/model@4") / "model").read_bytes() == b"here"
        assert FolderStore(tmp_path / "twin").check(deep=True).clean

    def test_what_a_job_has_in_place_and_not_committed_is_not_taken(
        self, source: FolderStore, opened: Open, tmp_path: Path
    ) -> None:
        mirror(FolderHome(source), opened())
        twin = FolderStore(tmp_path / "twin")
        folder = twin.layout.version("flights/model", 3)
        (folder / "data").mkdir(parents=True)
        (folder / "data/model").write_bytes(b"of a job")
        (folder / "MANIFEST").write_bytes(b"of a job")
        folder.with_name(".3").symlink_to("put-running:0")
        with pytest.raises(Conflict, match="that of job put-running"):
            mirror(opened(), FolderHome(twin), adopt=True)
        assert (folder / "data/model").read_bytes() == b"of a job"


@pytest.mark.slow
class TestService(MirrorContract):
    """Each test starts a service; the three other places show the contract in `make check`."""

    @pytest.fixture
    def opened(self, tmp_path: Path) -> Iterator[Open]:
        (tmp_path / "served").mkdir()
        Served.root = tmp_path / "served/store"
        with Service(tmp_path / "served") as service:
            yield lambda: Served(service.client())

    def test_a_change_of_one_percent_moves_as_much(
        self, source: FolderStore, opened: Open, tmp_path: Path
    ) -> None:
        before = bytes_of("large", 20 << 20)
        inserted = before[: 7 << 20] + bytes_of("new", len(before) // 100) + before[7 << 20 :]
        put(source, tmp_path / "put", "flights/table", {"rows": before})
        mirror(FolderHome(source), opened())
        put(source, tmp_path / "put", "flights/table", {"rows": inserted})
        done = mirror(FolderHome(source), opened())
        assert done.whole
        assert done.sent_bytes <= len(before) * 0.015
        assert_restores(source, opened(), tmp_path / "restored")

    def test_a_version_before_that_is_damaged_there_costs_its_bytes_alone(
        self, source: FolderStore, opened: Open, tmp_path: Path
    ) -> None:
        put(source, tmp_path / "put", "flights/table", {"rows": bytes_of(1, 2 << 20)})
        mirror(FolderHome(source), opened())
        damage(tmp_path / "served/store/v/flights/table/1/data/rows", bytes_of(2, 2 << 20))
        put(source, tmp_path / "put", "flights/table", {"rows": bytes_of(1, 2 << 20) + b"1"})
        assert mirror(FolderHome(source), opened()).whole

    def test_it_goes_on_after_the_service_was_killed(self, source: FolderStore, tmp_path: Path) -> None:
        (tmp_path / "killed").mkdir()
        with Service(tmp_path / "killed") as service:
            told = list[str]()

            def kill_now_and_then(line: str) -> None:
                told.append(line)
                if len(told) in (1, 2):
                    service.kill()
                    service.start()

            done = Copying(
                FolderHome(source), ServiceHome(service.client()), progress=kill_now_and_then
            ).run()
            assert done.whole
            assert_restores(source, ServiceHome(service.client("again")), tmp_path / "restored")

    def test_what_a_kill_left_of_another_version_is_not_written_to(
        self, opened: Open, tmp_path: Path
    ) -> None:
        """The source was lost meanwhile: the same number is another version now, whose file goes on where that of the first ends."""
        same = bytes_of("same", 2 << 20)
        source = FolderStore(tmp_path / "lost")
        (tmp_path / "put").mkdir(exist_ok=True)
        put(source, tmp_path / "put", "flights/table", {"rows": same})
        mirror(FolderHome(source), opened())
        put(source, tmp_path / "put", "flights/table", {"rows": same, "more": b"1"})
        leave_begun(FolderHome(source), FolderHome(FolderStore(tmp_path / "served/store")))
        again = FolderStore(tmp_path / "again")
        mirror(opened(), FolderHome(again), adopt=True)
        put(again, tmp_path / "put", "flights/table", {"rows": same + bytes_of("more", 1 << 20)})
        assert mirror(FolderHome(again), opened()).whole
        assert (tmp_path / "served/store/v/flights/table/1/data/rows").read_bytes() == same
        assert facts(FolderStore(tmp_path / "served/store")) == facts(again)

    def test_a_session_goes_on_while_a_large_file_is_cut(
        self, source: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each piece takes 50 seconds, and another mirror asks meanwhile."""
        (tmp_path / "inside").mkdir()
        before, ahead, cut = bytes_of("large", 2 << 20), [0.0], delta.pieces
        clock = SimpleNamespace(monotonic=lambda: time.monotonic() + ahead[0])
        with Inside(tmp_path / "inside") as service:
            put(source, tmp_path / "put", "flights/table", {"rows": before})
            mirror(FolderHome(source), ServiceHome(service.client()))
            put(source, tmp_path / "put", "flights/table", {"rows": before + b"1"})
            other = ServiceHome(service.client("other"))

            def slowly(*arguments: Any) -> Iterator[tuple[int, int, bytes]]:
                for piece in cut(*arguments):
                    ahead[0] += 50.0
                    other.ask("POST", "verify", content=b'{"places": []}')
                    yield piece

            monkeypatch.setattr(mirroring, "time", clock)
            monkeypatch.setattr(service_home, "time", clock, raising=False)
            monkeypatch.setattr(delta, "pieces", slowly)
            done = mirror(FolderHome(source), ServiceHome(service.client()))
            assert done.whole
            assert done.sent_bytes < 64 << 10
            other.close()

    def test_a_late_request_finds_its_own_session(
        self, source: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "inside").mkdir()
        monkeypatch.setattr(mirroring, "IDLE_SECONDS", 0.0)
        with Inside(tmp_path / "inside") as service:
            assert mirror(FolderHome(source), ServiceHome(service.client())).whole

    @pytest.mark.parametrize("lost", ["record", "torn record", "manifest", "commit", "large file"])
    def test_whatever_a_version_lost_there_is_repaired(
        self, source: FolderStore, opened: Open, tmp_path: Path, lost: str
    ) -> None:
        mirror(FolderHome(source), opened())
        root = tmp_path / "served/store"
        before = facts(FolderStore(root))
        folder = root / "v/flights/features/3"
        where = {
            "manifest": folder / "MANIFEST",
            "commit": root / f"commits/{source.record('flights/features@3').job_id}.json",
            "large file": folder / "data/big",
        }.get(lost, folder / "RECORD.json")
        if lost in ("manifest", "torn record", "large file"):
            damage(where, bytes_of("rotten", 3 << 20) if lost == "large file" else b"{}")
        else:
            where.unlink()
        found = FolderStore(root).check(deep=True)
        done = repair(opened(), FolderHome(source), found)
        assert (done.versions, done.left) == (["volume://flights/features@3"], {})
        assert facts(FolderStore(root)) == before
        assert FolderStore(root).check(deep=True).clean


def leave_begun(source: FolderHome, target: FolderHome) -> None:
    """Leave what a mirror leaves that is killed once it has linked the files of flights/table@2 that @1 has."""
    first, second = (source.documents(("flights/table", number)) for number in (1, 2))
    filling = target.begin(second, first)
    assert filling is not None
    assert list(filling.missing) == ["more"]
    target.close()


class TestOpenFolder(MirrorContract):
    @pytest.fixture
    def opened(self, tmp_path: Path) -> Open:
        return lambda: OpenHome(f"file://{tmp_path}/open")

    def test_its_files_are_read_without_muster(
        self, source: FolderStore, opened: Open, tmp_path: Path
    ) -> None:
        mirror(FolderHome(source), opened())
        data = tmp_path / "open/flights/features/3"
        assert (data / "data/new").read_bytes() == b"333"
        assert (data / "RECORD.json").is_file()
        assert (data / "MANIFEST").is_file()

    def test_what_a_kill_left_is_deleted_when_it_is_a_day_old(
        self, source: FolderStore, opened: Open, tmp_path: Path
    ) -> None:
        old, new, own = (f".new-{digit * 16}" for digit in "012")
        place = put(source, tmp_path / "put", "flights/table", {f"d/{own}": b"1", ".new-own": b"2"})
        data = tmp_path / "open/flights/table/1/data/d"
        data.mkdir(parents=True)
        (tmp_path / "open/MIRROR.json").write_text(
            json.dumps({"format": 1, "layout": "open", "of": FolderHome(source).owner()})
        )
        for name, age_seconds in ((old, 2 * 86_400), (new, 0)):
            (data / name).write_bytes(b"half")
            os.utime(data / name, (time.time() - age_seconds,) * 2)
        assert mirror(FolderHome(source), opened(), volumes=["flights/table"]).whole
        assert sorted(path.name for path in data.iterdir()) == [new, own], place

    def test_a_folder_with_other_files_is_refused(self, source: FolderStore, tmp_path: Path) -> None:
        (tmp_path / "open").mkdir()
        (tmp_path / "open/mine").write_text("1")
        with pytest.raises(Exception, match="holds other files"):
            mirror(FolderHome(source), OpenHome(f"file://{tmp_path}/open"))
        assert [path.name for path in (tmp_path / "open").iterdir()] == ["mine"]

    def test_what_a_kill_left_of_another_version_is_not_taken_for_this_one(
        self, opened: Open, tmp_path: Path
    ) -> None:
        """The source was lost meanwhile: the same number is another version now, with a file of the same name and size."""
        put_folder = tmp_path / "put"
        put_folder.mkdir(exist_ok=True)
        first = {"kept": b"kept", "other": b"other", "more": b"1"}
        source = FolderStore(tmp_path / "lost")
        put(source, put_folder, "flights/table", first)
        mirror(FolderHome(source), opened())
        put(source, put_folder, "flights/table", first | {"more": b"2", "d/gone": b"3"})
        before, lost = (FolderHome(source).documents(("flights/table", number)) for number in (1, 2))
        opened().receive(lost, FolderHome(source), base=before, tell=lambda _: None)
        again = FolderStore(tmp_path / "again")
        mirror(opened(), FolderHome(again), adopt=True)
        put(again, put_folder, "flights/table", first | {"kept": b"other", "more": b"4"})
        done = mirror(FolderHome(again), opened())
        assert done.whole
        assert done.sent_bytes == 1
        assert_restores(again, opened(), tmp_path / "restored")
        files = {
            path.relative_to(tmp_path / "open/flights/table/2/data").as_posix()
            for path in (tmp_path / "open/flights/table/2/data").rglob("*")
            if path.is_file()
        }
        assert files == first.keys()
        assert (tmp_path / "open/flights/table/1/data/kept").read_bytes() == b"kept"

    def test_what_was_changed_there_is_not_restored(
        self, source: FolderStore, opened: Open, tmp_path: Path
    ) -> None:
        mirror(FolderHome(source), opened())
        (tmp_path / "open/flights/model/3/data/model").write_bytes(b"changed")
        done = mirror(opened(), FolderHome(FolderStore(tmp_path / "restored")), adopt=True)
        assert set(done.damaged) == {"volume://flights/model@3"}

    def test_a_manifest_that_leads_out_of_its_version_is_not_followed(
        self, source: FolderStore, opened: Open, tmp_path: Path
    ) -> None:
        mirror(FolderHome(source), opened())
        folder = tmp_path / "open/flights/model/3"
        (entry,) = source.manifest("flights/model@3").values()
        hostile = render([replace(entry, path="../../../../../hostile")])
        old, new = source.record("flights/model@3").digest, hostile.partition(b"\n")[0].decode()
        (folder / "MANIFEST").write_bytes(hostile)
        (folder / "RECORD.json").write_text((folder / "RECORD.json").read_text().replace(old, new))
        index = tmp_path / "open/_muster/versions/flights/model"
        (index / f"3-{old[3:]}").rename(index / f"3-{new[3:]}")
        done = mirror(opened(), FolderHome(FolderStore(tmp_path / "restored")), adopt=True)
        assert "no plain path" in done.damaged["volume://flights/model@3"]
        assert not list(tmp_path.rglob("hostile"))

    def test_a_manifest_that_was_changed_there_is_named(
        self, source: FolderStore, opened: Open, tmp_path: Path
    ) -> None:
        mirror(FolderHome(source), opened())
        (tmp_path / "open/flights/model/3/MANIFEST").write_bytes(b"b3:0\n")
        with pytest.raises(Corrupt, match="another manifest or record"):
            opened().documents(("flights/model", 3))


class TestMemory(MirrorContract):
    """An object store in this process: there are no folders."""

    # Unlike any store of use, it shows an object before it is whole; S3's contract has this one.
    test_two_at_once_bring_each_version_whole = None

    @pytest.fixture
    def opened(self, tmp_path: Path) -> Open:
        return lambda: OpenHome(f"memory://{tmp_path.name}/mirror")

    def test_what_was_copied_from_a_file_that_arrived_wrong_is_brought_again(
        self, source: FolderStore, opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for more in (b"1", b"2"):
            put(source, tmp_path / "put", "flights/table", {"rows": b"right", "more": more})
        home = opened()
        receive = home.receive

        def receive_wrong(documents: VersionDocuments, *given: Any, **more: Any) -> None:
            receive(documents, *given, **more)
            if documents.place == ("flights/table", 1):
                change_there(home, documents.place, "rows", b"wrong")

        monkeypatch.setattr(home, "receive", receive_wrong)
        done = mirror(FolderHome(source), home)
        assert set(done.wrong) == {"volume://flights/table@1", "volume://flights/table@2"}
        assert set(mirror(FolderHome(source), opened()).versions) == set(done.wrong)
        assert_restores(source, opened(), tmp_path / "restored")

    def test_a_mirror_that_another_began_since_the_first_look_is_no_place_of_other_files(
        self, source: FolderStore, opened: Open, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        owner, home = FolderHome(source).owner(), opened()
        mirror(FolderHome(source), opened())
        looks = iter([""])
        monkeypatch.setattr(home, "owner", lambda: next(looks, owner))
        home.own(owner)
        assert opened().owner() == owner
