import errno
import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tests.contract.test_store import write
from tests.waiting import GUARD_SECONDS

from muster.core.data import OutputTarget
from muster.core.errors import Corrupt, NotFound, SpecError, StoreError
from muster.core.job import JobSpec, Role
from muster.core.origin import Origin
from muster.core.status import JobState, JobStatus
from muster.ext.search.space import uniform
from muster.ext.search.spec import Search, SearchSpec
from muster.ext.search.stored import begin_search
from muster.volumes import retention, sharing, upkeep
from muster.volumes.folder import FolderStore


def going(store, **options):
    return [version.address.removeprefix("volume://") for version in store.plan(**options).versions]


def kept(store, **options):
    return {a.removeprefix("volume://"): why for a, why in store.plan(**options).kept.items()}


def test_the_last_versions_of_each_partition_stay(work, store):
    for n in range(3):
        spec = work.spec(out=OutputTarget(volume="months", partition="*"))
        work.seal(f"a-{n}", spec, {"out": {"2013-01/x": b"%d" % n, f"2013-0{n + 2}/x": b"1"}})
        store.commit(f"a-{n}", attempt=1)
    assert going(store, keep_last=1) == ["months@1", "months@3"]
    assert going(store, keep_last=2) == ["months@1"]
    assert kept(store, keep_last=1)["months@5"] == "one of the last 1"


def test_pinned_leased_and_made_from_stay(work, store):
    raw = [work.run(f"raw-{n}", {"x": b"%d" % n}, volume="raw") for n in range(4)]
    middle = [work.run(f"mid-{n}", {"x": b"%d" % n}, volume="mid", inputs={"raw": raw[n]}) for n in range(3)]
    model = work.run("model-1", {"x": b"m"}, volume="model", inputs={"mid": middle[0]})
    store.pin(raw[1].address, reason="deployment/flights")
    store.lease([middle[1].address], holder="reader-1")
    assert kept(store, keep_last=1) == {
        "raw@1": f"{middle[0].address} was made from it",
        "raw@2": "pinned: deployment/flights",
        "raw@3": f"{middle[2].address} was made from it",
        "raw@4": "one of the last 1",
        "mid@1": f"{model.address} was made from it",
        "mid@2": "leased by reader-1",
        "mid@3": "one of the last 1",
        "model@1": "one of the last 1",
    }
    store.release("reader-1")
    assert going(store, keep_last=1) == ["mid@2"]


def test_only_the_volumes_that_are_named_lose_versions(work, store):
    raw = [work.run(f"raw-{n}", {"x": b"%d" % n}, volume="raw") for n in range(3)]
    for n in range(2):
        work.run(f"mid-{n}", {"x": b"%d" % n}, volume="mid", inputs={"raw": raw[n]})
    assert going(store, keep_last=1, volumes=["mid"]) == ["mid@1"]
    assert kept(store, keep_last=1, volumes=["mid"]) == {"mid@2": "one of the last 1"}
    assert kept(store, keep_last=1, volumes=["raw"])["raw@1"] == "volume://mid@1 was made from it"
    assert going(store, keep_last=1) == ["mid@1", "raw@1"]
    staged = store.plan(volumes=["mid"], job_days=0)
    assert staged.jobs == ()
    assert store.plan(job_days=0).jobs
    with pytest.raises(NotFound, match=r"no volume 'other': .*mid, raw"):
        store.collect(volumes=["mid", "other"], keep_last=1)
    store.collect(volumes=["mid"], keep_last=1)
    assert [version.address for version in store.versions("mid")] == ["volume://mid@2"]
    assert len(store.versions("raw")) == 3


def test_a_job_that_ended_holds_no_lease(work, store):
    first = work.run("a-1", {"x": b"1"})
    work.run("a-2", {"x": b"2"})
    store.ledger.create("b-1", work.spec(out="other"))
    store.lease([first.address], holder="b-1")
    assert going(store, keep_last=1) == []
    work.end("b-1")
    assert going(store, keep_last=1) == ["flights/features@1"]


def test_what_was_made_lately_stays_unless_it_is_retired(work, store, monkeypatch):
    for n in range(3):
        work.run(f"a-{n}", {"x": b"%d" % n})
    store.retire("flights/features@2", reason="wrong")
    assert kept(store, keep_last=1, young_days=1) == {
        "flights/features@1": "young: a run that goes on may name it",
        "flights/features@3": "one of the last 1",
    }
    now = time.time()
    monkeypatch.setattr(retention.time, "time", lambda: now + 1.1 * retention.DAY_SECONDS)
    assert going(store, keep_last=1, young_days=1) == ["flights/features@1", "flights/features@2"]


def replace_version(work, job_id, old):
    """Run a job whose commit retires the version that it begins with, and end it; return the new version."""
    out = OutputTarget(volume=old.volume, base="before", after=old.number, retires=(old.number,))
    spec = work.spec(inputs={"before": old}, out=out)
    work.seal(job_id, spec, {"out": {"all": job_id.encode()}})
    ((made,),) = work.store.commit(job_id, attempt=1).values()
    work.end(job_id)
    return made


@pytest.fixture
def clock(monkeypatch):
    """Let days pass."""
    passed = [0.0]
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + passed[0] * retention.DAY_SECONDS)

    def after(days):
        passed[0] += days

    return after


def set_replaced(store, version, at):
    """The marks on a version as if they had been written then: the clock of a disk cannot be moved."""
    for mark in (store.layout.version(version.volume, version.number) / "replaced").iterdir():
        os.utime(mark, (at, at))


def test_an_old_version_that_a_commit_replaced_stays_for_runs_that_were_given_it(work, store, clock):
    raw = work.run("raw-1", {"x": b"1"}, volume="raw")
    old = work.run("a-1", {"x": b"1"}, inputs={"raw": raw})
    work.run("raw-2", {"x": b"2"}, volume="raw")
    clock(5)
    (given,) = store.resolve("flights/features@latest")
    assert given == old
    made = replace_version(work, "a-2", old)
    set_replaced(store, old, time.time())
    rules = {"keep_last": 1, "young_days": 1.0}
    clock(0.9)
    assert kept(store, **rules) == {
        "raw@1": f"{old.address} was made from it",
        "raw@2": "one of the last 1",
        "flights/features@1": "replaced lately: a run that goes on may name it",
        "flights/features@2": "one of the last 1",
    }
    store.collect(**rules)
    later = work.spec(inputs={"rows": given}, out="later")
    store.ledger.create("later-1", later)
    store.lease([given.address], holder="later-1")
    assert (store.path(given.address) / "x").read_bytes() == b"1"
    work.end("later-1")
    clock(0.2)
    store.collect(**rules)
    with pytest.raises(NotFound, match="@1 was deleted by gc"):
        store.path(old.address)
    assert [version.address for version in store.versions("flights/features")] == [made.address]
    assert not store.check(deep=True).problems


def test_what_was_replaced_and_then_retired_by_its_address_goes_at_once(work, store):
    old = work.run("a-1", {"x": b"1"})
    made = replace_version(work, "a-2", old)
    assert going(store, young_days=1) == []
    assert going(store) == ["flights/features@1"]
    assert store.retire(old.address, reason="wrong rows").retired == "wrong rows"
    assert going(store, young_days=1) == ["flights/features@1"]
    store.reinstate(old.address)
    assert store.resolve(old.address)[0].retired is None
    store.retire(made.address, reason="wrong rows, too")
    assert going(store, keep_last=1) == [made.address.removeprefix("volume://")]


def test_what_an_earlier_release_replaced_goes_at_once(work, store):
    old = work.run("a-1", {"x": b"1"})
    replace_version(work, "a-2", old)
    folder = store.layout.version(old.volume, old.number)
    (folder / "replaced" / "a-2").rename(folder / "RETIRED")
    (folder / "replaced").rmdir()
    assert store.resolve(old.address)[0].retired == "replaced by flights/features@2"
    assert going(store, young_days=1) == ["flights/features@1"]


def test_retired_versions_go_first(work, store):
    for n in range(3):
        work.run(f"a-{n}", {"x": b"%d" % n})
    store.retire("flights/features@3", reason="wrong")
    assert going(store, keep_last=2) == ["flights/features@3"]


def test_what_goes_leaves_record_manifest_and_number(work, store):
    versions = [work.run(f"a-{n}", {"x": b"%d" % n}) for n in range(3)]
    collected = store.collect(keep_last=1, grace_seconds=0)
    assert [v.number for v in collected.plan.versions] == [1, 2]
    again = FolderStore(store.layout.root)
    assert [v.number for v in again.versions("flights/features")] == [3]
    with pytest.raises(NotFound, match="@1 was deleted by gc; there are 3"):
        again.path("flights/features@1")
    assert again.record("flights/features@1").job_id == "a-0"
    assert list(again.manifest("flights/features@1")) == ["x"]
    assert not store.layout.version("flights/features", 1).exists()
    assert again.commit("a-0", attempt=1) == {"out": (versions[0],)}
    assert work.run("a-4", {"x": b"4"}).number == 4
    assert again.check(deep=True).problems == ()


def test_the_newest_may_go_and_its_number_is_still_not_reused(work, store):
    work.run("a-1", {"x": b"1"})
    second = work.run("a-2", {"x": b"2"})
    store.retire(second.address, reason="wrong")
    store.collect(keep_last=1, grace_seconds=0)
    assert work.run("a-3", {"x": b"3"}).number == 3


def test_who_reads_without_a_lease_has_time_to_finish(work, store):
    first = work.run("a-1", {"x": b"1"})
    work.run("a-2", {"x": b"2"})
    store.collect()  # the seals of the two jobs, which are not read
    with (store.path(first.address) / "x").open("rb") as reader:
        assert store.collect(keep_last=1).freed_bytes == 0
        assert reader.read() == b"1"
    assert len(list(store.layout.trash.iterdir())) > 0
    assert store.collect(keep_last=1, grace_seconds=0).freed_bytes > 0
    assert list(store.layout.trash.iterdir()) == []


def test_on_a_disk_that_is_nearly_full_what_goes_makes_room_at_once(work, store, monkeypatch):
    """Jobs fail there; who reads without a lease can ask again. What else lies in the trash may be an upload that comes in."""
    monkeypatch.setattr("muster.core.room.SCARCE_BYTES", 1 << 62)
    work.run("a-1", {"x": b"1" * 9000})
    work.run("a-2", {"x": b"2"})
    store.collect()
    coming = store.layout.trash / f"{int(time.time())}-0123456789abcdef"
    coming.mkdir()
    collected = store.collect(keep_last=1)
    assert collected.at_once
    assert collected.freed_bytes >= 9000
    assert list(store.layout.trash.iterdir()) == [coming]


def test_what_is_known_of_a_version_makes_room_for_its_tombstone(work, store, monkeypatch):
    """On a disk without a free block: else gc could not free the first version, nor any other."""
    first = work.run("a-1", {"x": b"1"})
    work.run("a-2", {"x": b"2"})
    folder, there = store.layout.version(first.volume, first.number), []
    assert (folder / sharing.KNOWN).exists()
    write = upkeep.write_whole

    def full(path, *given, **how):
        if path.name == "TOMBSTONE":
            there.append((path.parent / sharing.KNOWN).exists())
        return write(path, *given, **how)

    monkeypatch.setattr(upkeep, "write_whole", full)
    store.collect(keep_last=1)
    assert there == [False]


def test_shared_files_do_not_count_as_freed(work, store):
    for n in range(2):
        work.run(f"a-{n}", {"same": b"x" * 9000, "own": b"%d" % n})
    store.collect(keep_last=1)
    taken = [path for path in store.layout.trash.iterdir() if (path / "same").exists()]
    assert len(taken) == 1
    assert store.collect(keep_last=1, grace_seconds=0).freed_bytes < 9000
    assert (store.path("flights/features") / "same").read_bytes() == b"x" * 9000


def test_a_file_with_several_names_in_a_version_is_freed_with_it(work, store):
    for n in range(2):  # both files of the second are links to one of the first
        work.run(f"a-{n}", {"one": b"x" * 9000, "two": b"x" * 9000})
    store.collect(keep_last=1, now=True)
    work.run("a-2", {"one": b"2"})
    assert store.collect(keep_last=1, now=True).freed_bytes >= 9000


def test_leftovers_of_ended_jobs_go_and_of_running_ones_stay(work, store):
    for job_id in ("ended-1", "running-1"):
        work.seal(job_id, work.spec(out="flights/x"), {"out": {"x": b"1"}})
    work.end("ended-1")
    assert store.collect(grace_seconds=0).plan.staging == ("ended-1",)
    store.commit("running-1", attempt=1)
    assert store.ledger.jobs() == ["ended-1", "running-1"]


TASK = Origin(instance="i", dag_id="flights", run_id="r", task_id="train")


def failed(work, job_id, *, ended=None, origin=TASK, **more):
    """A job that saved a checkpoint, staged half an output and failed; `ended` is so many days ago."""
    store, spec = work.store, replace(work.spec(out="flights/x"), origin=origin, **more)
    store.ledger.create(job_id, spec)
    staging = store.stage(job_id)
    write(staging, spec, {"out": {"half": bytes(9000)}})
    (staging.checkpoints / "epoch-5").write_bytes(b"weights")
    at = time.time() - (ended or 0) * 86_400
    store.ledger.update(
        JobStatus(
            job_id=job_id, state=JobState.FAILED, submitted=store.ledger.status(job_id).submitted, ended=at
        )
    )
    return staging


def test_the_checkpoints_of_a_task_that_failed_stay_and_what_it_staged_beside_them_goes(work, store):
    staging = failed(work, "a-1")
    done = store.collect()
    assert (done.plan.resumable, done.plan.staging) == (("a-1",), ())
    assert done.freed_bytes >= 9000
    assert [path.name for path in staging.root.iterdir()] == ["checkpoints"]
    assert store.saved("a-1").files == 1
    assert store.check().problems == ()


@pytest.mark.parametrize(
    ("made", "rules"),
    [({"ended": 8}, {}), ({"ended": 0.5}, {"checkpoint_days": 0.25}), ({"origin": Origin()}, {})],
    ids=["too old", "older than the rule", "of no task"],
)
def test_checkpoints_that_no_try_will_go_on_from_go(work, store, made, rules):
    failed(work, "a-1", **made)
    assert store.collect(**rules).plan.staging == ("a-1",)
    assert store.saved("a-1") is None


def test_checkpoints_of_a_task_that_has_succeeded_since_go(work, store):
    for job_id, task in (("a-1", TASK), ("b-1", replace(TASK, map_index=1))):
        failed(work, job_id, origin=task)
    spec = replace(work.spec(out="flights/x"), origin=TASK)
    work.seal("a-2", spec, {"out": {"x": b"1"}})
    store.commit("a-2", attempt=1)
    work.end("a-2", at=time.time())
    assert store.collect().plan.resumable == ("b-1",)
    assert (store.saved("a-1"), store.saved("b-1").files) == (None, 1)


def test_checkpoints_that_a_waiting_job_goes_on_from_stay_however_old(work, store):
    failed(work, "a-1", ended=20)
    store.ledger.create("a-2", replace(work.spec(out="flights/x"), origin=TASK, follows="a-1"))
    assert store.collect().plan.resumable == ("a-1",)
    assert contents(store.stage("a-2").checkpoints) == {"epoch-5": b"weights"}


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_commit_under_way_is_left_alone(work, store):
    """Its version is in its place, its commit record is not there yet, and a process holds its lock."""
    version = work.run("put-1", {"x": b"1"})
    work.cut_off("put-1")
    store.layout.discard(store.layout.job("put-1"))
    with store.attempts.alone("put-1"):
        assert store.plan().torn == ()
        assert store.plan().staging == ()
    store.layout.delete(store.layout.staging("put-1"))
    assert store.collect(grace_seconds=0).plan.torn == (str(store.layout.version(version.volume, 1)),)
    assert work.run("a-1", {"x": b"1"}).number == 2
    assert store.check(deep=True).problems == ()


def test_a_version_that_is_committed_after_gc_has_looked_is_left_alone(work, store, monkeypatch):
    """Its commit record came while gc asked whether it was still being committed."""
    version = work.run("put-1", {"x": b"1"})
    record, aside = store.layout.commit("put-1"), work.cut_off("put-1")
    store.layout.discard(store.layout.job("put-1"))
    store.layout.delete(store.layout.staging("put-1"))
    given_up = store.ended.given_up

    def commit_meanwhile(job_id):
        found = given_up(job_id)
        if aside.exists():
            aside.rename(record)
        return found

    monkeypatch.setattr(store.ended, "given_up", commit_meanwhile)
    assert store.collect(grace_seconds=0).plan.torn != ()
    assert FolderStore(store.layout.root).check(deep=True).problems == ()
    assert (store.path(version.address) / "x").read_bytes() == b"1"


def test_two_collections_at_once_do_not_stop_each_other(work, store, monkeypatch):
    """The other one took everything away between what this one decided and what it did."""
    work.seal("ended-1", work.spec(out="flights/x"), {"out": {"x": bytes(9000)}})
    work.end("ended-1")
    work.run("put-1", {"x": b"1"})
    work.cut_off("put-1")
    store.layout.discard(store.layout.job("put-1"))
    store.layout.delete(store.layout.staging("put-1"))
    decided = store.plan()
    assert decided.torn
    assert decided.staging
    assert store.collect().freed_bytes >= 9000
    monkeypatch.setattr(upkeep, "uncommitted", lambda _: [(Path(path), "put-1") for path in decided.torn])
    monkeypatch.setattr(store.ended, "leftovers", lambda **_: decided.staging)
    assert store.collect().freed_bytes == 0


def test_what_an_ended_job_shut_goes_as_well(work, store, unprivileged):
    work.seal("ended-1", work.spec(out="flights/x"), {"out": {"x": bytes(9000)}})
    shut = store.layout.staging("ended-1") / "shut"
    (shut / "inner").mkdir(parents=True)
    (shut / "inner" / "y").write_bytes(bytes(500))
    (shut / "inner").chmod(0)
    shut.chmod(0o300)
    work.end("ended-1")
    assert store.collect().freed_bytes >= 9500
    assert not store.layout.staging("ended-1").exists()
    assert list(store.layout.trash.iterdir()) == []


def test_a_full_disk_gets_room_though_no_version_can_go(work, store, monkeypatch):
    """A tombstone needs a block, and what an ended job has staged is in its way."""
    for n in range(2):
        work.run(f"a-{n}", {"x": b"%d" % n})
    work.seal("ended-1", work.spec(out="flights/x"), {"out": {"x": bytes(9000)}})
    work.end("ended-1")

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(upkeep, "write_whole", full)
        with pytest.raises(StoreError, match="No space left"):
            store.collect(keep_last=1)
    assert not store.layout.staging("ended-1").exists()
    assert len(store.versions("flights/features")) == 2
    assert store.collect(keep_last=1).plan.versions != ()


def test_gc_waits_for_who_takes_a_lease(work, store):
    """A version that is leased before gc decides is never deleted, however close they come."""
    first = work.run("a-1", {"x": b"1"})
    work.run("a-2", {"x": b"2"})
    collector = threading.Thread(target=store.collect, kwargs={"keep_last": 1})
    with store.marks.steady():
        collector.start()
        store.lease([first.address], holder="reader-1")
    collector.join(timeout=GUARD_SECONDS)
    assert store.resolve(first.address) == (first,)


def test_old_jobs_go_with_their_logs(work, store):
    work.seal("old-1", work.spec(out="flights/features"), {"out": {"x": b"1"}})
    ((version,),) = store.commit("old-1", attempt=1).values()
    work.end("old-1", at=time.time() - 2 * retention.DAY_SECONDS)
    store.ledger.append("old-1", b"line\n")
    work.seal("new-1", work.spec(out="flights/x"), {"out": {"x": b"1"}})
    store.collect(job_days=1, grace_seconds=0)
    assert store.ledger.jobs() == ["new-1"]
    assert store.record(version.address).job_id == "old-1"
    assert store.commit("old-1", attempt=1) == {"out": (version,)}


def test_code_that_nothing_refers_to_goes_after_a_day(work, store, tmp_path, monkeypatch):
    digests = []
    for name in ("kept.py", "used.py", "idle.py"):
        (tmp_path / name).write_text(name)
        digests.append(store.put(tmp_path, [name]))
    work.run("a-1", {"x": b"1"}, code=digests[0])
    store.ledger.create("b-1", work.spec(out="flights/x", code=digests[1]))
    assert store.plan().code == ()
    now = time.time()
    monkeypatch.setattr(retention.time, "time", lambda: now + 2 * retention.DAY_SECONDS)
    assert store.collect().plan.code == (digests[2],)
    assert store.code(digests[0]).is_dir()
    with pytest.raises(NotFound):
        store.code(digests[2])


@pytest.mark.parametrize("options", [{"keep_last": 0}, {"job_days": -1}, {"young_days": -1}])
def test_nonsense_is_refused(store, options):
    with pytest.raises(SpecError, match=r"need (1|0) or more"):
        store.plan(**options)


def test_what_a_waiting_job_will_read_stays(work, store):
    first = work.run("a-1", {"x": b"1"})
    work.run("a-2", {"x": b"2"})
    store.ledger.create("b-1", work.spec(out="other", inputs={"rows": first}))
    assert kept(store, keep_last=1)["flights/features@1"] == "b-1 waits for it"
    work.end("b-1")
    assert going(store, keep_last=1) == ["flights/features@1"]


def test_nothing_goes_while_what_a_job_reads_cannot_be_told(work, store):
    for n in range(2):
        work.run(f"raw-{n}", {"x": b"%d" % n}, volume="raw")
    job = store.layout.job("raw-0")
    whole = (job / "status.json").read_text()
    (job / "status.json").write_text(whole[:-9])
    with pytest.raises(
        Corrupt, match=f"status.json cannot be read: .*take {job} away: .* gc deletes nothing"
    ):
        store.collect(keep_last=1)
    assert len(store.versions("raw")) == 2
    (job / "status.json").write_text(whole)
    assert [version.number for version in store.collect(keep_last=1).plan.versions] == [1]


def test_the_lock_of_an_image_stays_while_a_job_or_a_version_names_it(work, store, tmp_path, monkeypatch):
    (tmp_path / "requirements.txt").write_text("blake3==1.0\n")
    lock = store.put(tmp_path, ["requirements.txt"])
    tomorrow = time.time() + 2 * retention.DAY_SECONDS
    monkeypatch.setattr(retention.time, "time", lambda: tomorrow)
    assert store.plan().code == (lock,)
    spec = replace(work.spec(out="v"), image_digest=lock)
    work.seal("a-1", spec, {"out": {"x": b"1"}})
    assert store.plan().code == ()
    store.commit("a-1", attempt=1)
    work.end("a-1", at=1.0)
    assert store.plan(job_days=0).jobs == ("a-1",)
    assert store.plan(job_days=0).code == ()


def test_a_pin_that_goes_while_we_look_hides_no_other(work, store):
    version = work.run("a-1", {"x": b"1"})
    store.pin(version.address, reason="deployment/flights")
    pins = store.layout.version(version.volume, version.number) / "pins"
    (pins / "gone").symlink_to("nowhere")  # listed, and not there any more when it is read
    (pins / ".new-0123").write_text("depl")  # a pin that a crash cut off
    assert store.resolve(version.address)[0].pins == ("deployment/flights",)


def test_code_goes_for_whoever_may_not_write_its_read_only_folder(store, tmp_path, monkeypatch, unprivileged):
    (tmp_path / "train.py").write_text("")
    code = store.put(tmp_path, ["train.py"])
    tomorrow = time.time() + 2 * retention.DAY_SECONDS
    monkeypatch.setattr(retention.time, "time", lambda: tomorrow)
    assert store.collect().plan.code == (code,)
    with pytest.raises(NotFound):
        store.code(code)


def test_a_search_in_which_nothing_happens_any_more_goes_with_its_leases(store, tmp_path):
    (tmp_path / "x").write_text("rows")
    rows = store.add("flights/rows", tmp_path / "x")
    trial = JobSpec(
        name="a.search",
        image="python",
        image_digest="b3:" + "0" * 64,
        roles=(Role(entrypoint="a:b"),),
        params={"rate": 0},
    )
    spec = SearchSpec(space={"rate": uniform(0, 1)}, metric="auc")
    for search_id in ("old", "new"):
        begin_search(store, search_id, Search(spec=spec, trial=trial, began=0.0))
        store.lease([rows.address], holder=search_id)
    folder = store.layout.root / "searches" / "old"
    os.utime(folder / "search.json", (0, 0))
    store.collect(job_days=1)
    assert store.logs("searches") == ["new"]
    assert [path.name for path in (store.layout.root / "leases").iterdir()] == ["new"]
