"""The log of usage: what a job's line says, and what is left of it after crashes, gc and years."""

from __future__ import annotations

import errno
import os
import resource
import time
from pathlib import Path
from typing import Any

import pytest

from muster.core.errors import StoreError
from muster.core.job import JobSpec, Role
from muster.core.origin import Origin
from muster.core.resources import Resources
from muster.core.series import Curve, Series
from muster.core.status import JobState, JobStatus
from muster.core.tally import Allotment, Tally
from muster.ext.usage import log
from muster.volumes import ledger
from muster.volumes.folder import FolderStore

SPEC = JobSpec(
    name="flights.train",
    image="train",
    image_digest=f"b3:{0:064}",
    roles=(Role(command=("train",), replicas=2, resources=Resources(cpus=4, gpus=1, gpu_class="a100")),),
    origin=Origin(instance="i", dag_id="flights", run_id="r1", task_id="train"),
)


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    store = FolderStore(tmp_path / "store")
    for job_id in ("one", "two"):
        store.ledger.create(job_id, SPEC)
    return store


def end(store: FolderStore, job_id: str, at: float, state: JobState = JobState.SUCCEEDED) -> None:
    store.ledger.update(JobStatus(job_id=job_id, state=state, submitted=at - 200, ended=at))


def lines(store: FolderStore, now: float, since: float = 0.0) -> dict[str, log.UsageLine]:
    return {line.job_id: line for line in log.read(store.layout.root, store.ledger, since=since, now=now)}


def hold(store: FolderStore, job_id: str, since: float, **more: str) -> None:
    times = (Allotment(since=since, replicas=2, gpus=2),)
    store.ledger.note_tally(job_id, Tally(times=times, **more))


def test_a_job_is_there_while_it_holds_and_when_it_has_ended(store: FolderStore) -> None:
    now = time.time()
    store.ledger.note_tally("one", Tally(user="ada"))
    assert lines(store, now) == {}
    hold(store, "one", now - 100)
    assert lines(store, now)["one"].held == [(round(now - 100, 1), round(now, 1), 2, 2)]
    end(store, "one", now - 40)
    line = lines(store, now)["one"]
    assert line.held == [[round(now - 100, 1), round(now - 40, 1), 2, 2]]
    assert (line.user, line.dag, line.gpu_class, line.cpus, line.gpus) == ("ada", "flights", "a100", 4, 1)
    assert store.ledger.tally("one").current is None
    assert not list((store.layout.root / "usage" / "open").iterdir())
    store.ledger.note_tally("one", Tally(times=(Allotment(since=now, replicas=9),)))
    assert len(store.ledger.tally("one").times) == 1


def test_means_of_the_series(store: FolderStore) -> None:
    now = time.time()
    hold(store, "one", now - 100)
    for replica, cores in (("main-0", 1.0), ("main-1", 3.0)):
        for second in range(3):
            words = f"cpu_cores={cores + second} memory_gib=1 gpu0_share=0.{second + 2} gpu0_memory_gib=9"
            store.ledger.append("one", f"[use {replica}] muster: {words}\n".encode())
    end(store, "one", now)
    line = lines(store, now)["one"]
    assert line.cpu_share == pytest.approx(3.0)
    assert line.gpu_share == pytest.approx(0.3)


def test_one_that_nobody_looked_at_held_from_its_start(store: FolderStore) -> None:
    status = JobStatus(job_id="x", state=JobState.SUCCEEDED, submitted=0, started=100, ended=160)
    line = log.line_of(SPEC, status, Tally(), Series(), now=160)
    assert line.held == [(100, 160, 2, 2)]
    assert (line.cpu_share, line.gpu_share) == (None, None)
    use = (Curve(name="cpu_cores", source="main-0", seconds=(1.0,), values=(2.0,), told=1),)
    assert log.line_of(SPEC, status, Tally(), Series(use=use), now=160).cpu_share == 2.0


def test_a_job_that_ended_twice_counts_once(store: FolderStore) -> None:
    """A kill between the line and the record of the end leaves both; the next look ends the job again."""
    now = time.time()
    hold(store, "one", now - 100)
    status = JobStatus(job_id="one", state=JobState.FAILED, submitted=now - 200, ended=now - 50)
    tally = store.ledger.tally("one").ended(now - 50)
    log.tallied(store.layout.root, SPEC, status, tally, lambda: Series(), False)
    assert lines(store, now)["one"].state == "queued"  # until its end is recorded it goes on
    end(store, "one", now - 10, JobState.CANCELLED)
    assert lines(store, now)["one"].state == "cancelled"
    assert lines(store, now)["one"].held[0][1] == pytest.approx(now - 10, abs=0.1)


def test_a_cut_line_spoils_no_other(store: FolderStore) -> None:
    now = time.time()
    hold(store, "one", now - 100)
    end(store, "one", now)
    (path,) = (store.layout.root / "usage").glob("*.jsonl")
    with path.open("ab") as file:
        file.write(b'\n[1.0,"torn')
    hold(store, "two", now - 50)
    end(store, "two", now)
    assert set(lines(store, now)) == {"one", "two"}


def test_a_line_that_the_disk_has_no_room_for_leaves_no_part(store: FolderStore) -> None:
    now = time.time()
    hold(store, "one", now - 100)
    end(store, "one", now)
    (path,) = (store.layout.root / "usage").glob("*.jsonl")
    before, line = path.read_bytes(), lines(store, now)["one"]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 20, limits[1]))
    try:
        with pytest.raises(OSError, match="No space left on device"):
            log.append(store.layout.root, line)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before


def test_an_end_that_is_not_recorded_leaves_a_job_that_holds(
    store: FolderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, write = time.time(), ledger.write_whole
    hold(store, "one", now - 100)

    def full(path: Path, data: str | bytes, **how: Any) -> None:
        if path.name == "status.json":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(path, data, **how)

    monkeypatch.setattr(ledger, "write_whole", full)
    with pytest.raises(StoreError, match="No space left on device"):
        end(store, "one", now)
    monkeypatch.undo()
    assert lines(store, now)["one"].state == "queued"
    end(store, "one", now)
    assert [line.state for line in lines(store, now).values()] == ["succeeded"]
    assert not list((store.layout.root / "usage" / "open").iterdir())


def test_what_cannot_be_counted_keeps_no_job_from_its_end(
    store: FolderStore, caplog: pytest.LogCaptureFixture
) -> None:
    (store.layout.root / "usage").write_text("a file where a folder has to be")
    end(store, "one", time.time())
    assert store.ledger.status("one").state is JobState.SUCCEEDED
    assert "the use of job one is not counted" in caplog.text


def test_what_lies_beside_the_log_is_nobodys_job(store: FolderStore) -> None:
    now = time.time()
    hold(store, "one", now - 100)
    beside = store.layout.root / "usage" / "open"
    for name in (".nfs0001", ".DS_Store", "notes.txt"):
        (beside / name).touch()
    (beside / "lost+found").mkdir()
    assert set(lines(store, now)) == {"one"}
    store.collect()
    assert set(lines(store, now)) == {"one"}
    assert (beside / "notes.txt").is_file()


def test_gc_keeps_the_log_for_400_days(store: FolderStore) -> None:
    now, day = time.time(), 86_400.0
    hold(store, "one", now - 100)
    end(store, "one", now)
    line = lines(store, now)["one"]
    for days in (10, 390, 440, 900):
        log.append(store.layout.root, log.UsageLine(now - days * day, f"{days}-days", *line[2:]))
    hold(store, "two", now)
    mark = store.layout.root / "usage" / "open" / "killed-at-its-end"
    mark.touch()
    store.collect()
    assert set(lines(store, now)) == {"one", "two", "10-days", "390-days"}
    assert os.listdir(mark.parent) == ["two"]  # noqa: PTH208
    assert set(lines(store, now, since=now - 20 * day)) == {"one", "two", "10-days"}
