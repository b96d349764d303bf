"""What gc leaves of deleted versions is in few files, and no less is known of them."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from blake3 import blake3

from muster.core.data import OutputTarget
from muster.core.errors import NotFound, StoreError
from muster.ext.mirrors.folder import FolderHome
from muster.ext.mirrors.scan import scan
from muster.volumes import numbers, tombstones, upkeep
from muster.volumes.commit_records import all_commits, write_commit
from muster.volumes.durability import is_free
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
    tombstones.load.cache_clear()
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
    assert list(tombstones.above(store.layout, VOLUME, 0, lambda _: None)) == list(range(1, 101))
    assert len(files(store)) == 1


def test_a_full_file_is_left_as_it_is(work, store):
    text = "".join(f"{each:x}" for each in os.urandom(600_000))
    for number in range(1, 8):
        stone = Tombstone(number=number, deleted=1.0, committed=1.0, record="{}", manifest=text)
        tombstones.add(store.layout, VOLUME, iter([stone]))
    assert len(files(store)) == 7
    assert list(tombstones.above(store.layout, VOLUME, 5, lambda _: None)) == [6, 7]


def three(work):
    """1 lives, 2 is folded, 3 lives."""
    first = work.run("a-1", {"x": b"1"})
    work.run("a-2", {"x": b"2"})
    work.store.retire(f"{VOLUME}@2", reason="wrong")
    work.run("a-3", {"x": b"3"})
    work.store.pin(first.address, reason="in the paper")
    collect(work.store)
    assert work.store.layout.numbers(VOLUME) == [1, 3]
    return work.store


def damage(path):
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)
    tombstones.load.cache_clear()


@pytest.mark.parametrize("broken", [False, True])
def test_the_number_of_a_folded_version_is_not_given_again_by_a_hint_that_is_not_true(work, broken):
    store = three(work)
    if broken:
        damage(files(store)[0])
    (store.layout.root / "hints" / "flights:features" / "newest").write_text("1")
    assert work.run("a-4", {"x": b"4"}).number == 4


def test_the_number_of_a_version_that_is_folded_while_it_is_taken_is_not_given_again(
    work, tmp_path, monkeypatch
):
    work.run("a-1", {"x": b"1"})
    is_top = numbers.is_top

    def late(*arguments):
        found = is_top(*arguments)
        monkeypatch.setattr(numbers, "is_top", is_top)
        assert three_more(work) == [1, 3]
        return found

    monkeypatch.setattr(numbers, "is_top", late)
    assert numbers.reserve(work.store.layout, VOLUME, claim="b-1:0", note=tmp_path / "note") == 4
    assert work.store.layout.taken(VOLUME) == {4: "b-1:0"}


def three_more(work):
    work.store.pin(f"{VOLUME}@1", reason="in the paper")
    for number in (2, 3):
        work.run(f"a-{number}", {"x": b"%d" % number})
    collect(work.store)
    return work.store.layout.numbers(VOLUME)


def test_a_mark_that_a_kill_left_on_a_folded_number_gives_it_to_nobody(work, tmp_path):
    store, note = three(work), tmp_path / "note"
    note.write_text("2")
    (store.layout.volume(VOLUME) / ".2").symlink_to("b-1:0")
    assert numbers.reserve(store.layout, VOLUME, claim="b-1:0", note=note) == 4
    assert store.layout.taken(VOLUME) == {4: "b-1:0"}


def test_a_commit_record_that_a_mirror_writes_while_versions_are_folded_stays(work, store):
    for number in (1, 2):
        work.run(f"a-{number}", {"x": b"%d" % number})
    collect_without_fold(store)
    before = dict(all_commits(store.layout))
    for job_id in ("a-1", "a-2"):
        store.layout.delete(store.layout.job(job_id))
    other = before["a-1"].outputs | {"beside": [("other", 1)]}
    store.layout.version("other", 1).mkdir(parents=True)
    write_commit(store.layout, "a-1", replace(before["a-1"], outputs=other))
    store.upkeep.fold(before, before=before["a-2"].at + 1)
    assert store.layout.numbers(VOLUME) == [2]
    assert store.layout.commit("a-1").exists()
    store.layout.version("other", 1).rmdir()
    store.upkeep.fold(dict(all_commits(store.layout)), before=before["a-2"].at + 1)
    assert store.layout.commit("a-1").exists(), "the other may be on its way"
    write_commit(store.layout, "a-1", before["a-1"])
    store.upkeep.fold(dict(all_commits(store.layout)), before=before["a-2"].at + 1)
    assert not store.layout.commit("a-1").exists()


def collect_without_fold(store):
    store.collect(volumes=[VOLUME], keep_last=1, now=True)


def test_gc_goes_on_where_a_file_is_damaged_that_commit_records_still_need(work, store):
    for number in (1, 2):
        work.run(f"a-{number}", {"x": b"%d" % number})
    store.collect(keep_last=1, now=True)  # the ledger has the jobs, so their commit records stay
    (path,) = files(store)
    damage(path)
    work.run("a-3", {"x": b"3"})
    report = FolderStore(store.layout.root).check()
    assert report.clean
    assert [each.where for each in report.problems] == [str(path)]
    assert "leave it there" in report.problems[0].advice
    collect(FolderStore(store.layout.root))
    assert path in files(store)
    assert store.layout.commit("a-1").exists()


@pytest.mark.parametrize("name", ["MANIFEST", "RETIRED"])
def test_a_version_that_is_folded_while_a_mirror_looks_is_as_it_was(work, store, monkeypatch, name):
    for number in (1, 2):
        work.run(f"a-{number}", {"x": b"%d" % number})
    store.retire(f"{VOLUME}@1", reason="wrong")
    collect_without_fold(store)
    before, documents = scan(store.layout), FolderHome(store).documents((VOLUME, 1))
    module = sys.modules["muster.ext.mirrors.scan"]
    called, real = ("digest_of", module.digest_of) if name == "MANIFEST" else ("retired", module.retired)

    def late(*arguments):
        monkeypatch.setattr(module, called, real)
        collect(store)
        assert store.layout.numbers(VOLUME) == [2]
        return real(*arguments)

    copy = shutil.copytree(store.layout.root, store.layout.root.with_name("copy"), symlinks=True)
    monkeypatch.setattr(module, called, late)
    assert scan(store.layout) == before
    store = FolderStore(copy)
    monkeypatch.setattr(module, called, late)
    found = FolderHome(store).documents((VOLUME, 1))
    assert store.layout.numbers(VOLUME) == [2]
    assert (found.digest, found.record, found.holding) == (
        documents.digest,
        documents.record,
        documents.holding,
    )


def test_leases_wait_for_one_file_of_a_fold(work, store, monkeypatch):
    for number in range(1, 6):
        work.run(f"a-{number}", {"x": b"%d" % number})
    collect_without_fold(store)
    monkeypatch.setattr(tombstones, "MOST_BYTES", 1)
    free, held, add = list[bool](), list[bool](), tombstones.add
    lock = store.layout.root / "gc.lock"
    monkeypatch.setattr(
        tombstones, "add", lambda *arguments: (held.append(not is_free(lock)), add(*arguments))[1]
    )
    monkeypatch.setattr(upkeep.time, "sleep", lambda _: free.append(is_free(lock)))
    store.upkeep.fold({}, before=0.0)
    assert store.layout.numbers(VOLUME) == [5]
    assert held == [True] * 5
    assert free == [True] * 5


def test_the_record_of_a_commit_of_many_versions_is_read_once(work, store, opened):
    months = [f"2013-0{number}" for number in range(1, 6)]
    spec = work.spec(**{f"out_{month[-1]}": OutputTarget(volume=VOLUME, partition=month) for month in months})
    work.seal("a-1", spec, {output: {"x": output.encode()} for output in spec.outputs})
    for (version,) in store.commit("a-1", attempt=1).values():
        store.retire(version.address, reason="wrong")
    work.end("a-1")
    work.run("a-2", {"x": b"2"})
    collect_without_fold(store)
    found = opened(lambda: store.upkeep.fold({}, before=0.0))
    assert store.layout.numbers(VOLUME) == [6]
    assert sum("a-1.json" in str(each) for each in found) == 1


def rewrite(path, change):
    rows = json.loads(zlib.decompress(path.read_bytes()))
    data = zlib.compress(json.dumps([change(row) for row in rows]).encode())
    first, last, _ = path.name.split("-")
    new = path.with_name(f"{first}-{last}-{blake3(data).hexdigest()}")
    new.write_bytes(data)
    path.unlink()
    return new


def test_a_field_of_a_later_release_is_passed_over_and_stays(work, store):
    for number in (1, 2):
        work.run(f"a-{number}", {"x": b"%d" % number})
    collect(store)
    path = rewrite(files(store)[0], lambda row: row | {"worth": 1})
    assert FolderStore(store.layout.root).record(f"{VOLUME}@1").job_id == "a-1"
    work.run("a-3", {"x": b"3"})
    collect(store)
    assert path in files(store)
    assert len(files(store)) == 2
    assert store.check().problems == ()


def test_a_file_that_lacks_a_field_is_named_by_fsck(work, store):
    for number in (1, 2):
        work.run(f"a-{number}", {"x": b"%d" % number})
    collect(store)
    path = rewrite(files(store)[0], lambda row: {n: each for n, each in row.items() if n != "record"})
    (problem,) = store.check().problems
    assert problem.where == str(path)
    assert "of another release of muster" in problem.what


def test_a_part_is_never_returned_as_if_it_were_all(work, store, monkeypatch):
    store = three(work)
    (path,) = files(store)
    tombstones.load.cache_clear()
    monkeypatch.setattr(tombstones, "files_of", lambda _: [(path, 2, 2), (path.with_name("2-2-gone"), 2, 2)])
    with pytest.raises(StoreError, match="changes all the time"):
        tombstones.find(store.layout, VOLUME, 2)


def test_the_first_version_of_a_partition_reads_no_deleted_one_for_itself(work, store, opened):
    for number in range(1, 31):
        work.run(f"a-{number}", {"x": b"%d" % number})
    collect(store)
    spec = work.spec(out=OutputTarget(volume=VOLUME, partition="2013-01", after=0))
    work.seal("b-1", spec, {"out": {"x": b"b"}})
    again = FolderStore(store.layout.root)
    found = opened(lambda: again.commit("b-1", attempt=1))
    assert sum("RECORD.json" in str(each) for each in found) < 10
