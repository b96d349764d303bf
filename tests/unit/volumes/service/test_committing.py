"""What a job comes to that has sealed, where the disk under the store is not what it should be."""

import errno
import itertools
import os
import threading
import time
from dataclasses import replace

import pytest
from tests.unit.volumes.service.gang import Gang, make_spec
from tests.unit.volumes.service.inside import Inside
from tests.unit.volumes.service.process import until

from muster.core.job import Launcher
from muster.core.status import JobState
from muster.core.verdict import Cause, Verdict
from muster.volumes.folder import FolderStore
from muster.volumes.ledger import FolderLedger
from muster.volumes.service import committer, pods
from muster.volumes.service.committer import Committer


@pytest.fixture
def service(tmp_path, monkeypatch):
    monkeypatch.setattr(committer, "SHORTEST_PAUSE_SECONDS", 0.01)
    with Inside(tmp_path) as service:
        yield service


@pytest.fixture
def gang(service):
    with Gang(service, "train-1", make_spec()) as gang:
        yield gang


def failing(monkeypatch, owner, name, number, *, times=1, thread="commit"):
    """Let the first calls of a method fail as the file system would, where a commit makes them."""
    method, calls = getattr(owner, name), itertools.count(1)

    def fail_first(*args, **how):
        if threading.current_thread().name.startswith(thread) and next(calls) <= times:
            raise OSError(number, os.strerror(number))
        return method(*args, **how)

    monkeypatch.setattr(owner, name, fail_first)


def ended(service, gang):
    with service.client() as store:
        return until(lambda: store.ledger.status(gang.job_id), lambda status: status.state.ended)


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ENOSPC])
@pytest.mark.parametrize(
    ("owner", "name"), [(FolderStore, "staging"), (FolderStore, "commit"), (FolderLedger, "update")]
)
def test_what_passes_is_waited_for(service, gang, monkeypatch, owner, name, number):
    failing(monkeypatch, owner, name, number)
    gang.finish({"out/x": b"1"})
    assert ended(service, gang).state is JobState.SUCCEEDED


def test_a_claim_that_stays_full_is_called_that_and_what_was_staged_is_given_back(service, gang, monkeypatch):
    monkeypatch.setattr(committer, "PATIENCE_SECONDS", 0.0)
    service.kill()
    service.start()
    failing(monkeypatch, FolderStore, "commit", errno.ENOSPC, times=10**9)
    gang.bundle()
    (gang.root() / "checkpoints" / "epoch-1").write_bytes(b"x" * 2048)
    gang.finish_started({"out/x": b"1" * 4096})
    status = ended(service, gang)
    assert (status.state, status.verdict.cause) == (JobState.FAILED, Cause.DISK_FULL)
    assert "the store's claim has " in status.verdict.message
    assert "(checkpoints of this one: 2.0 KiB)" in status.verdict.advice
    with service.client() as store:
        (held,) = store.held()
    assert (held.outputs_bytes, held.checkpoints_bytes) == (0, 2048)


def test_a_job_that_fails_gives_back_what_it_staged_at_once(service, gang):
    gang.bundle()
    gang.write({"out/x": b"1" * 4096, "out/d/y": b"2"})
    (gang.root() / "checkpoints" / "epoch-1").write_bytes(b"x" * 2048)
    written = gang.root().resolve() / "main-0"
    verdict = Verdict(cause=Cause.USER_ERROR, message="ValueError", advice="mend it")
    with service.client() as store:
        status = store.ledger.status(gang.job_id)
        store.ledger.update(replace(status, state=JobState.FAILED, ended=time.time(), verdict=verdict))
        until(written.exists, lambda there: not there)
        (held,) = until(store.held, bool)
    assert (held.outputs_bytes, held.checkpoints_bytes) == (0, 2048)


def test_a_log_that_cannot_be_read_costs_no_version(service, gang, monkeypatch):
    failing(monkeypatch, FolderLedger, "read", errno.EIO, times=10**9)
    gang.finish({"out/x": b"1"})
    assert ended(service, gang).state is JobState.SUCCEEDED


def test_a_tally_that_cannot_be_read_costs_no_version(service, gang):
    (service.root / "jobs" / gang.job_id / "tally.json").write_bytes(b"\0" * 80)
    gang.finish({"out/x": b"1"})
    assert ended(service, gang).state is JobState.SUCCEEDED


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOENT])
@pytest.mark.parametrize("name", ["staging", "commit"])
def test_what_stays_ends_the_job_at_once(service, gang, monkeypatch, name, number):
    failing(monkeypatch, FolderStore, name, number, times=10**9)
    gang.finish({"out/x": b"1"})
    status = ended(service, gang)
    assert (status.state, status.verdict.cause) == (JobState.FAILED, Cause.COMMIT_FAILED)
    assert os.strerror(number) in status.verdict.message


def test_what_nobody_foresaw_ends_the_job_too(service, gang, monkeypatch):
    def defect(*_, **__):
        raise RecursionError

    monkeypatch.setattr(FolderStore, "commit", defect)
    gang.finish({"out/x": b"1"})
    status = ended(service, gang)
    assert (status.state, status.verdict.cause) == (JobState.FAILED, Cause.COMMIT_FAILED)
    assert "RecursionError" in status.verdict.message


@pytest.mark.parametrize(
    ("owner", "name"), [(FolderLedger, "jobs"), (FolderStore, "staging"), (FolderLedger, "update")]
)
def test_what_was_sealed_before_is_found_when_the_disk_can_be_read_again(
    service, gang, monkeypatch, owner, name
):
    with monkeypatch.context() as before:
        before.setattr(Committer, "bring_to_end", lambda *_: None)
        gang.finish({"out/x": b"1"})
        service.kill()
    failing(monkeypatch, owner, name, errno.EIO, thread="pick-up")
    service.start()
    assert ended(service, gang).state is JobState.SUCCEEDED


@pytest.mark.parametrize("files", [{"out/x": b"1"}, {}])
def test_how_much_a_log_lacks_is_in_its_last_lines(service, gang, monkeypatch, files):
    monkeypatch.setattr(pods, "LIMIT_LOG_BYTES", 4)
    assert gang.lines(b"one\ntwo\nthree\n") == 14
    gang.finish(files)
    status = ended(service, gang)
    with service.client() as store:
        full, left_out, *verdict = store.ledger.read(gang.job_id)[0].decode().splitlines()
    assert "as long as a job's may be" in full
    assert left_out == "[muster] 14 bytes of what ranks printed are left out of this log"
    assert verdict == ([] if files else status.verdict.render(job_id=gang.job_id).splitlines())


def test_a_job_that_succeeds_says_which_workers_of_an_engine_it_lost(service):
    spec = make_spec(replicas=2)
    spec = replace(spec, launcher=Launcher.DASK)
    with Gang(service, "count-1", spec) as gang:
        for index in (0, 1):
            gang.bundle(index).raise_for_status()
        said = "the engine's worker was lost at 2026-11-26 14:03:22 UTC (exit status 1), and the driver goes on: another one begins"
        gang.lines(f"[rank 1] {said}\n".encode(), index=1)
        for index in (0, 1):
            gang.finish_started({"out/x": b"1"} if index == 0 else {}, index=index)
        status = ended(service, gang)
    assert status.state is JobState.SUCCEEDED
    assert status.reason == (
        "the worker of replica 1 was lost at 2026-11-26 14:03:22 UTC (exit status 1), and the driver went on without it"
    )
