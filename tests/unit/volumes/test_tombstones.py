"""What gc leaves of deleted versions is in few files, and no less is known of them."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from muster.core.data import OutputTarget
from muster.core.errors import NotFound
from muster.ext.mirrors.folder import FolderHome
from muster.ext.mirrors.scan import scan
from muster.volumes import tombstones
from muster.volumes.folder import FolderStore
from muster.volumes.tombstones import Tombstone

FAULTS = Path(__file__).parent / "fold_faults.py"
VOLUME = "flights/features"


@pytest.mark.slow
@pytest.mark.parametrize("how", ["kill", "ENOSPC", pytest.param("EIO", marks=pytest.mark.soak)])
def test_a_fold_cut_off_at_any_step_loses_nothing_and_is_done_by_the_next_gc(how):
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # no power is cut
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        done = subprocess.run(
            [sys.executable, FAULTS, folder, how], capture_output=True, text=True, check=False, timeout=300
        )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["steps"] > 20


def collect(store):
    return store.collect(keep_last=1, job_days=0, now=True)


def files(store, volume=VOLUME):
    return sorted(store.layout.tombstones(volume).iterdir())


def test_what_is_known_of_a_deleted_version_stays(work, store):
    raw = work.run("raw-1", {"x": b"r"}, volume="raw")
    made = work.run("a-1", {"x": b"1", "d/y": b"22"}, inputs={"raw": raw})
    work.run("a-2", {"x": b"2"})
    store.retire(made.address, reason="wrong")
    before = [store.catalog.described(VOLUME, 1), store.record(made.address), *store.manifest(made.address)]
    held = scan(store.layout)
    collect(store)
    again = FolderStore(store.layout.root)
    assert not again.layout.version(VOLUME, 1).exists()
    after = [again.catalog.described(VOLUME, 1), again.record(made.address), *again.manifest(made.address)]
    assert after == before
    assert again.record(made.address).inputs == {"raw": (raw.pinned,)}
    assert {place: each.digest for place, each in scan(again.layout).items()} == {
        place: each.digest for place, each in held.items()
    }
    found = FolderHome(again).documents((VOLUME, 1))
    assert (found.digest, found.holding.retired, found.holding.deleted) == (made.digest, "wrong", True)
    for call in (again.resolve, again.catalog.path, lambda address: again.retire(address, reason="no")):
        with pytest.raises(NotFound, match="@1 was deleted by gc; there are 2"):
            call(made.address)
    assert again.check(deep=True).problems == ()


def test_many_are_in_one_file_and_numbers_go_on(work, store):
    for number in range(1, 9):
        work.run(f"a-{number}", {"x": b"%d" % number})
        collect(store)
    assert len(files(store)) == 1
    assert store.layout.numbers(VOLUME) == [8]
    assert [path.name for path in (store.layout.root / "commits").iterdir()] == ["a-8.json"]
    store.retire(f"{VOLUME}@8", reason="wrong")
    work.run("b-1", {"x": b"b"}, volume="other")
    collect(store)
    assert store.layout.numbers(VOLUME) == [8], "numbers go on from it"
    shutil.rmtree(store.layout.root / "hints")
    assert FolderStore(store.layout.root).volumes() == ["flights/features", "other"]
    assert work.run("a-9", {"x": b"9"}).number == 9
    assert store.last(VOLUME) == 9


def test_the_last_number_of_a_partition_is_that_of_a_folded_version(work, store):
    for number, month in enumerate(("2013-01", "2013-02", "2013-03"), 1):
        spec = work.spec(out=OutputTarget(volume=VOLUME, partition=month))
        work.seal(f"a-{number}", spec, {"out": {"x": b"%d" % number}})
        store.commit(f"a-{number}", attempt=1)
        work.end(f"a-{number}")
    store.retire(f"{VOLUME}@2", reason="wrong")
    collect(store)
    assert store.layout.numbers(VOLUME) == [1, 3]
    assert [store.last(VOLUME, month) for month in ("2013-01", "2013-02", "2013-03", None)] == [1, 2, 3, 0]


def test_a_commit_that_is_needed_stays(work, store):
    """One that the ledger's job may ask for again, one of which a version is left, one that retires a version."""
    work.run("a-1", {"x": b"1"})
    spec = work.spec(out=VOLUME, beside="beside")
    work.seal("a-2", spec, {"out": {"x": b"2"}, "beside": {"x": b"2"}})
    versions = store.commit("a-2", attempt=1)
    work.end("a-2")
    for job_id, begun in (("a-3", versions["beside"][0]), ("a-4", None)):
        more = (
            {"base": "before", "after": begun.number, "retires": (begun.number,)} if begun is not None else {}
        )
        spec = work.spec(
            inputs={"before": begun} if begun is not None else {},
            out=VOLUME,
            beside=OutputTarget(volume="beside", **more),
        )
        work.seal(job_id, spec, {"out": {"x": job_id.encode()}, "beside": {"y": job_id.encode()}})
        store.commit(job_id, attempt=1)
        work.end(job_id)
    store.collect(keep_last=1, now=True)
    assert store.layout.numbers(VOLUME) == [4]
    assert {path.stem for path in (store.layout.root / "commits").iterdir()} == {"a-1", "a-2", "a-3", "a-4"}
    assert FolderStore(store.layout.root).commit("a-2", attempt=1)["out"] == versions["out"]
    assert store.check(deep=True).problems == ()


def test_the_mark_of_a_commit_whose_versions_are_gone_goes_on_to_retire(work, store):
    old = work.run("a-1", {"x": b"1"})
    spec = work.spec(inputs={"b": old}, out=OutputTarget(volume=VOLUME, base="b", after=1, retires=(1,)))
    work.seal("a-2", spec, {"out": {"x": b"2"}})
    store.commit("a-2", attempt=1)
    work.end("a-2")
    store.pin(old.address, reason="in the paper")
    store.retire(f"{VOLUME}@2", reason="wrong")
    work.run("a-3", {"x": b"3"})
    collect(store)
    assert store.layout.numbers(VOLUME) == [1, 3]
    assert FolderStore(store.layout.root).resolve(old.address)[0].retired == f"replaced by {VOLUME}@2"
    store.unpin(old.address, reason="in the paper")
    for _ in range(2):
        collect(store)
    assert [path.name for path in (store.layout.root / "commits").iterdir()] == ["a-3.json"]


def test_a_file_that_is_damaged_is_named_and_gc_goes_on(work, store):
    for number in (1, 2):
        work.run(f"a-{number}", {"x": b"%d" % number})
    collect(store)
    (path,) = files(store)
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-1])
    work.run("a-3", {"x": b"3"})
    again = FolderStore(store.layout.root)
    tombstones._tombstones.cache_clear()
    with pytest.raises(NotFound):
        again.record(f"{VOLUME}@1")
    report = again.check()
    assert report.clean
    assert [each.where for each in report.problems] == [str(path)]
    collect(again)
    assert again.record(f"{VOLUME}@2").job_id == "a-2"
    assert path in files(again)


def test_a_version_whose_documents_are_damaged_is_not_folded(work, store):
    for number in (1, 2, 3):
        work.run(f"a-{number}", {"x": b"%d" % number})
    store.collect(volumes=[VOLUME], keep_last=1)
    record = store.layout.version(VOLUME, 1) / "RECORD.json"
    record.chmod(0o644)
    record.write_bytes(record.read_bytes().replace(b'"etl:run"', b'"etl:ran"'))
    collect(store)
    assert store.layout.numbers(VOLUME) == [1, 3]


def test_two_collectors_whose_locks_do_nothing_lose_none(work, store):
    def stone(number):
        return Tombstone(number=number, deleted=1.0, committed=1.0, record="{}", manifest=f"{number}")

    def add(first):
        for number in range(first, 100, 2):
            assert tombstones.add(store.layout, VOLUME, iter([stone(number)])) == [number]
            assert tombstones.find(store.layout, VOLUME, number) == stone(number)

    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(add, first) for first in (1, 2)]:
            done.result()
    tombstones.add(store.layout, VOLUME, iter([stone(100)]))
    assert list(tombstones.above(store.layout, VOLUME, 0)) == list(range(1, 101))
    assert len(files(store)) == 1


def test_a_full_file_is_left_as_it_is(work, store):
    text = "".join(f"{each:x}" for each in os.urandom(600_000))
    for number in range(1, 8):
        stone = Tombstone(number=number, deleted=1.0, committed=1.0, record="{}", manifest=text)
        tombstones.add(store.layout, VOLUME, iter([stone]))
    assert len(files(store)) == 7
    assert list(tombstones.above(store.layout, VOLUME, 5)) == [6, 7]
