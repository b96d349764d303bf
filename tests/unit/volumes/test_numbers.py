"""Numbers are given out once each, at the same cost however many there are."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from muster.core.data import OutputTarget
from muster.volumes import numbers, tree
from muster.volumes.folder import FolderStore

VOLUME = "flights/features"


def cost(opened, work, job_id):
    """How many files a commit opens, and how many folders it lists."""
    spec = work.spec(out=VOLUME)
    work.seal(job_id, spec, {"out": {"x": job_id.encode()}})
    return len(opened(lambda: FolderStore(work.store.layout.root).commit(job_id, attempt=1)))


@pytest.mark.slow
@pytest.mark.parametrize("after", ["commits", "gc"])
def test_a_commit_opens_no_more_in_a_volume_of_many_versions(work, store, opened, after):
    work.run("new-1", {"x": b"1"})
    few = cost(opened, work, "new-2")
    for n in range(40):
        work.run(f"a-{n}", {"x": b"%d" % n})
    if after == "gc":
        store.collect(keep_last=1, grace_seconds=0)
    assert cost(opened, work, "new-3") <= few


@pytest.mark.slow
def test_a_partition_that_is_new_to_a_volume_costs_a_look_at_a_few_versions(work, opened):
    def run(job_id, partition):
        work.seal(
            job_id, work.spec(out=OutputTarget(volume=VOLUME, partition=partition)), {"out": {"x": b"1"}}
        )
        return len(opened(lambda: FolderStore(work.store.layout.root).commit(job_id, attempt=1)))

    costs = [run(f"a-{n}", f"p{n:03}") for n in range(3 * numbers.LOOK_BACK)]
    assert costs[-1] <= costs[numbers.LOOK_BACK + 1]
    assert run("b-1", "p000") < costs[-1]
    same = {work.store.path(f"{VOLUME}@p000").joinpath("x").stat().st_ino}
    assert same == {work.store.path(f"{VOLUME}@1").joinpath("x").stat().st_ino}


@pytest.mark.parametrize("text", [None, "", "0", "1", "99", "newest"])
def test_a_hint_that_is_not_true_gives_no_number_twice(work, store, text):
    for n in range(3):
        work.run(f"a-{n}", {"x": b"%d" % n})
    hint = store.layout.root / "hints" / "flights:features" / "newest"
    hint.unlink() if text is None else hint.write_text(text)
    assert work.run("b-1", {"x": b"4"}).number == 4
    assert hint.read_text() == "4"
    assert store.check(deep=True).problems == ()


def test_a_number_that_an_earlier_muster_gave_out_since_is_not_given_again(work, store):
    """It writes no hint."""
    for n in range(2):
        work.run(f"a-{n}", {"x": b"%d" % n})
    before = (store.layout.root / "hints" / "flights:features" / "newest").read_text()
    work.run("a-3", {"x": b"3"})
    work.run("a-4", {"x": b"4"})
    (store.layout.root / "hints" / "flights:features" / "newest").write_text(before)
    assert work.run("a-5", {"x": b"5"}).number == 5


@pytest.mark.parametrize("note", ["kept", "lost"])
def test_a_job_finds_the_number_that_it_took_before_a_crash(store, tmp_path, note):
    path = tmp_path / "number-0"
    assert numbers.reserve(store.layout, VOLUME, claim="a-1:0", note=path) == 1
    assert numbers.reserve(store.layout, VOLUME, claim="a-2:0", note=tmp_path / "other") == 2
    if note == "lost":
        path.unlink()
        (store.layout.root / "hints" / "flights:features" / "newest").unlink()
    assert numbers.reserve(store.layout, VOLUME, claim="a-1:0", note=path) == 1
    assert numbers.reserve(store.layout, VOLUME, claim="a-3:0", note=tmp_path / "third") == 3


def test_two_machines_that_commit_one_job_come_to_one_number(store, tmp_path):
    notes = tmp_path / "number-0"
    for round_ in range(20):
        with ThreadPoolExecutor(4) as machines:
            asked = [
                machines.submit(numbers.reserve, store.layout, VOLUME, claim=f"a-{round_}:0", note=notes)
                for _ in range(2)
            ]
            others = [
                machines.submit(
                    numbers.reserve, store.layout, VOLUME, claim=f"b-{round_}-{n}:0", note=tmp_path / f"n-{n}"
                )
                for n in range(2)
            ]
        assert len({each.result() for each in asked}) == 1
        assert len({each.result() for each in (*asked, *others)}) == 3
    assert sorted(store.layout.taken(VOLUME)) == list(range(1, 61))


def test_a_store_may_be_copied_and_its_hints_deleted(work, store):
    work.run("a-1", {"x": b"1"})
    for path in (store.layout.root / "hints").rglob("*"):
        if path.is_file():
            path.unlink()
    assert work.run("a-2", {"x": b"1"}).number == 2


def test_a_number_is_not_given_again_where_its_folder_is_gone(work, store):
    for n in range(2):
        work.run(f"a-{n}", {"x": b"%d" % n})
    folder = store.layout.version("flights/features", 2)
    tree.remove(folder)
    assert work.run("b-1", {"x": b"3"}).number == 3
