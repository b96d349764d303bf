"""The supervisor's steps between two moments that a kill rarely hits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import muster.backends.local.supervisor as supervisor_module
from muster.backends.local.machine import Machine
from muster.backends.local.orders import Orders
from muster.backends.local.queue import Claim
from muster.backends.local.supervisor import Supervisor
from muster.core.errors import BackendError
from muster.core.job import JobSpec, Output, Role
from muster.core.replica import PartManifest, Report
from muster.core.status import JobResult
from muster.core.verdict import Cause, ExitCode, Verdict
from muster.core.wire import dumps
from muster.volumes.folder import FolderStore

SPEC = JobSpec(
    name="flights.train",
    image="train",
    image_digest=f"b3:{0:064}",
    roles=(Role(command=("train",)),),
    outputs={"model": Output(volume="flights/model")},
)


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    store = FolderStore(tmp_path / "store")
    store.ledger.create("job-1", SPEC)
    return store


@pytest.fixture
def supervisor(tmp_path: Path, store: FolderStore) -> Any:
    claim = Claim(job_id="job-1", memory_gib=1, gpus=(), port=0)
    machine = Machine(memory_gib=1)
    orders = Orders(
        claim=claim, machine=machine, home=str(tmp_path), cache=str(tmp_path), worker="", claim_handle=0
    )
    orders.places.job("job-1").root.mkdir(parents=True)
    return Supervisor(orders, {}, [])


def test_what_has_sealed_is_committed_though_its_worker_was_killed_then(
    supervisor: Any, store: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = supervisor._folder

    def seal_and_die(*_: object) -> Verdict:
        staging = store.stage("job-1")
        out, report = staging.output("main", 0, "model"), folder.report(staging.attempt, "main", 0)
        for made in (out, report.parent):
            made.mkdir(parents=True)
        (out / "weights").write_bytes(b"1")
        report.write_text(dumps(Report(exit_code=ExitCode.SEALED, metrics={"auc": 0.7})))
        files = {"model": {"weights": 1}}
        part = PartManifest(job_id="job-1", attempt=staging.attempt, role="main", index=0, files=files)
        staging.sealed("main", 0).write_text(dumps(part))
        return Verdict(cause=Cause.RANK_LOST, message="the worker was killed by signal 9", advice="")

    monkeypatch.setattr(supervisor, "_prepare", lambda: tmp_path)
    monkeypatch.setattr(supervisor, "_attempt", seal_and_die)
    result = supervisor._attempts()
    assert isinstance(result, JobResult)
    assert result.outputs == {"model": ("volume://flights/model@1",)}
    assert result.metrics == {"auc": 0.7}


def test_what_does_not_die_is_told_and_hides_no_verdict(
    supervisor: Any, store: FolderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def undying() -> None:
        raise BackendError("processes [7] do not die when killed")

    verdict = Verdict(cause=Cause.USER_ERROR, message="ValueError: no rows", advice="mend it", rank=3)
    monkeypatch.setattr(supervisor_module, "end_descendants", undying)
    monkeypatch.setattr(supervisor, "_attempts", lambda: verdict)
    assert supervisor._work() == verdict
    log, _ = store.ledger.read("job-1")
    assert log == b"[muster] left behind: processes [7] do not die when killed\n"


def test_no_attempt_is_started_beside_what_does_not_die(
    supervisor: Any, store: FolderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def undying() -> None:
        raise BackendError("processes [7] do not die when killed")

    started: list[int] = []

    def lose_a_rank(*_: object) -> Verdict:
        started.append(1)
        return Verdict(cause=Cause.RANK_LOST, message="killed by SIGKILL", advice="", rank=1)

    monkeypatch.setattr(supervisor_module, "end_descendants", undying)
    monkeypatch.setattr(supervisor, "_prepare", Path)
    monkeypatch.setattr(supervisor, "_attempt", lose_a_rank)
    ended = supervisor._work()
    assert ended.cause is Cause.BACKEND_ERROR
    assert "do not die" in ended.message
    assert len(started) == 1
    assert b"rank 1: killed by SIGKILL" in store.ledger.read("job-1")[0]
