"""Commits on NFS at its worst: with lost replies, by two machines at once, cut off by kill -9 or a power cut."""

import itertools
import json
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event

import pytest
from tests.contract.test_store import ONE, TWO, contents, run, write_and_seal
from tests.fuse.filesystem import Faults
from tests.fuse.mount import ROOT

from muster.core.errors import StoreError
from muster.core.status import JobState, JobStatus
from muster.volumes.folder import FolderStore

pytestmark = [pytest.mark.slow, pytest.mark.nfs]

WORST = {"links": False, "locks": False, "late": True}
FILES = {"features": {f"d-{n % 3}/{n}": b"%d" % n for n in range(12)}, "table": {"y": b"2", "e/z": b"3"}}


@pytest.fixture
def machines(clients):
    """Two machines with the same store, no locks between them."""
    return [FolderStore(clients(**WORST).root / "store") for _ in range(2)]


def sealed(store, job_id, spec=TWO, files=FILES):
    store.ledger.create(job_id, spec)
    write_and_seal(store.stage(job_id), spec, files)


def commit(store, job_id):
    """Commit as a service does: what failed is asked for again, which is promised to be safe."""
    for _ in range(20):
        try:
            return store.commit(job_id, attempt=1)
        except StoreError as error:
            refused = error
    raise refused


def at_once(*calls):
    together = Barrier(len(calls))

    def one(call):
        together.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(one, calls))


def numbers(store, volume="flights/features"):
    store.versions(volume)  # what others made is listed late, and then it is
    return [version.number for version in store.versions(volume)]


def named(store, address):
    """What a version holds, asked for by name: its listing may be late."""
    return {path: store.path(f"{address}/{path}").read_bytes() for path in store.manifest(address)}


def test_a_commit_whose_every_reply_is_lost_makes_one_version(clients):
    client = clients()
    store = FolderStore(client.root / "store")
    sealed(store, "a-1")
    client.misbehave(Faults(lost=1.0))
    made = store.commit("a-1", attempt=1)
    client.misbehave(Faults())
    assert FolderStore(store.layout.root).commit("a-1", attempt=1) == made
    assert [numbers(store, volume) for volume in store.volumes()] == [[1], [1]]
    assert contents(store.path("flights/features@1")) == FILES["features"]
    assert store.check(deep=True).problems == ()
    assert [path.name for path in store.layout.volume("flights/features").iterdir()] == ["1"]


def test_two_machines_commit_the_same_job(machines):
    one, other = machines
    for n in range(1, 6):
        sealed(one, f"a-{n}")
        made = at_once(lambda n=n: commit(one, f"a-{n}"), lambda n=n: commit(other, f"a-{n}"))
        assert made[0] == made[1]
        for store in machines:
            assert len(numbers(store)) == len(numbers(store, "flights/table")) == n
            assert named(store, made[0]["features"][0].address) == FILES["features"]
    assert FolderStore(one.layout.root).check(deep=True).clean


def test_two_machines_commit_to_one_volume(machines):
    for n in range(6):
        sealed(machines[n % 2], f"a-{n}", ONE)
    at_once(*(lambda n=n: commit(machines[n % 2], f"a-{n}") for n in range(6)))
    assert [numbers(store) for store in machines] == [[1, 2, 3, 4, 5, 6]] * 2
    jobs = {machines[0].record(f"flights/features@{n}").job_id for n in range(1, 7)}
    assert jobs == {f"a-{n}" for n in range(6)}
    assert machines[0].check(deep=True).clean


def test_another_machine_goes_on_with_what_one_had_begun_to_copy(clients, monkeypatch):
    one, other = (FolderStore(clients(**WORST, moves=False).root / "store") for _ in range(2))
    sealed(one, "a-1")
    with monkeypatch.context() as patched:
        patched.setattr("muster.volumes.commit.copy_tree", interrupted)
        with pytest.raises(KeyboardInterrupt):
            one.commit("a-1", attempt=1)
    made = other.commit("a-1", attempt=1)
    assert named(other, made["features"][0].address) == FILES["features"]
    assert other.check(deep=True).problems == ()


def interrupted(*_):
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("faults", "stride"),
    [
        ({"lost": 1.0}, 29),
        ({"moves": False}, 41),
        pytest.param({}, 1, marks=pytest.mark.soak),
        pytest.param({"lost": 1.0}, 1, marks=pytest.mark.soak),
        pytest.param({"moves": False}, 1, marks=pytest.mark.soak),
    ],
    ids=str,
)
def test_a_commit_that_is_killed_shows_nothing_or_all_and_can_be_done_again(clients, faults, stride):
    client = clients(**WORST)
    words = [sys.executable, "-m", "tests.fuse.cut_commits", client.root, str(stride)]
    done = subprocess.run(
        [*words, Faults(**WORST, **faults).dumps()], cwd=ROOT, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    assert outcome["nothing"] >= 2
    assert outcome["nothing"] + outcome["everything"] == (outcome["steps"] - 1) // stride
    assert stride > 1 or (outcome["nothing"] > 30 and outcome["everything"] > 5)


def test_what_was_acknowledged_outlives_the_power(clients, tmp_path):
    client = clients(**WORST)
    store = FolderStore(client.root / "store")
    made = [run(store, f"a-{n}", TWO, FILES)["features"][0] for n in range(2)]
    (tmp_path / "etl.py").write_text("x = 1\n")
    code = store.put(tmp_path, ["etl.py"])
    store.ledger.create("b-1", ONE)
    (store.stage("b-1").checkpoints / "step-5").write_bytes(b"weights")
    staging = store.stage("b-1")
    client.cut_power()
    store = FolderStore(client.root / "store")
    assert store.versions("flights/features") == made
    assert store.check(deep=True).problems == ()
    assert contents(store.code(code)) == {"etl.py": b"x = 1\n"}
    assert contents(staging.checkpoints) == {"step-5": b"weights"}


def test_who_reads_elsewhere_meets_whole_files_only(clients):
    here, there = clients(), clients(stale=True)
    writer = FolderStore(here.root / "store")
    writer.ledger.create("a-1", ONE)
    reader = FolderStore(there.root / "store")
    enough = Event()

    def write():
        for restarts in range(60):
            status = JobStatus(job_id="a-1", state=JobState.RUNNING, submitted=1.0, restarts=restarts)
            writer.ledger.update(status)
        enough.set()
        return 59

    def read():
        seen = 0
        while not enough.is_set():
            now = reader.ledger.status("a-1").restarts
            assert now >= seen
            seen = now
        return reader.ledger.status("a-1").restarts

    assert at_once(write, read) == [59, 59]


def test_gc_takes_what_is_open_the_next_time(clients):
    store = FolderStore(clients(**WORST).root / "store")
    for n in range(3):
        run(store, f"a-{n}", ONE, {"features": {"d/x": b"%d" % n}})
        store.ledger.update(JobStatus(job_id=f"a-{n}", state=JobState.SUCCEEDED, submitted=1.0, ended=2.0))
    with (store.path("flights/features@1") / "d" / "x").open() as reading:
        store.collect(keep_last=1, grace_seconds=0)
        assert reading.read() == "0"
        assert numbers(store) == [3]
        assert len(list(store.layout.trash.iterdir())) == 1
    store.collect(keep_last=1, grace_seconds=0)
    assert list(store.layout.trash.iterdir()) == []
    assert store.check(deep=True).problems == ()


def test_what_cannot_be_moved_to_the_trash_is_taken_away_at_once(clients):
    store = FolderStore(clients(moves=False).root / "store")
    for n in range(2):
        run(store, f"a-{n}", ONE, {"features": {"d/x": b"%d" % n}})
    store.collect(keep_last=1)
    assert numbers(store) == [2]
    assert list(store.layout.trash.iterdir()) == []
    assert not store.layout.version("flights/features", 1).exists()
    assert store.record("flights/features@1").job_id == "a-0"
    assert store.check(deep=True).problems == ()


def test_a_reason_that_is_being_read_while_it_is_taken_away_is_gone(clients):
    store = FolderStore(clients().root / "store")
    run(store, "a-1", ONE, {"features": {"x": b"1"}})
    store.pin("flights/features", reason="deployment/flights")
    (reason,) = (store.layout.version("flights/features", 1) / "pins").iterdir()
    with reason.open():
        assert store.unpin("flights/features", reason="deployment/flights").pins == ()


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10))
def test_three_machines_and_whatever_goes_wrong(clients, seed):
    chance = random.Random(seed)
    moves = chance.random() < 0.7
    mounts = [clients(**WORST) for _ in range(3)]
    stores = [FolderStore(mount.root / "store") for mount in mounts]
    jobs = [f"a-{n}" for n in range(12)]
    for job_id in jobs:
        sealed(chance.choice(stores), job_id)
    for mount in mounts:
        mount.misbehave(
            Faults(
                links=chance.random() < 0.5,
                moves=moves,
                locks=False,
                late=chance.random() < 0.7,
                lost=chance.choice([0.0, 0.2, 1.0]),
            )
        )
    for some in (jobs[:4], jobs[4:8], jobs[8:]):
        calls = [(chance.choice(stores), job_id) for job_id in some for _ in range(2)]
        at_once(*(lambda store=store, job_id=job_id: commit(store, job_id) for store, job_id in calls))
    for store, volume in itertools.product(stores, FILES):
        made = numbers(store, f"flights/{volume}")
        assert len(made) == len(set(made)) == 12
        assert {store.record(f"flights/{volume}@{number}").job_id for number in made} == set(jobs)
        for number in made:
            assert named(store, f"flights/{volume}@{number}") == FILES[volume]
    assert stores[0].check(deep=True).clean
