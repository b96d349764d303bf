"""The supervisor's steps between two moments that a kill rarely hits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import muster.backends.local.supervisor as supervisor_module
from muster.backends.local.machine import Machine
from muster.backends.local.orders import Orders
from muster.backends.local.places import JobFolder
from muster.backends.local.queue import Claim
from muster.backends.local.supervisor import Supervisor
from muster.core.cancelling import by_command
from muster.core.data import OutputTarget
from muster.core.errors import BackendError
from muster.core.job import JobSpec, Launcher, Role
from muster.core.replica import PartManifest, Report
from muster.core.status import JobResult
from muster.core.verdict import Cause, ExitCode, Verdict
from muster.core.wire import dumps
from muster.volumes.folder import FolderStore
from muster.volumes.survived import survived

Play = Callable[..., None]
SPEC = JobSpec(
    name="flights.train",
    image="train",
    image_digest=f"b3:{0:064}",
    roles=(Role(command=("train",)),),
    outputs={"model": OutputTarget(volume="flights/model")},
)


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    store = FolderStore(tmp_path / "store")
    store.ledger.create("job-1", SPEC)
    return store


@pytest.fixture
def orders(tmp_path: Path) -> Orders:
    claim = Claim(job_id="job-1", memory_gib=1, gpus=(), port=0)
    machine = Machine(memory_gib=1)
    orders = Orders(
        claim=claim, machine=machine, home=str(tmp_path), cache=str(tmp_path), worker="", claim_handle=0
    )
    orders.places.job("job-1").root.mkdir(parents=True)
    return orders


@pytest.fixture
def folder(orders: Orders) -> JobFolder:
    return orders.places.job("job-1")


@pytest.fixture
def supervisor(
    orders: Orders, store: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Supervisor:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return Supervisor(orders, {}, [])


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Let a function stand for the gang: it is called for each attempt, and returns its verdict."""

    def play(attempt: Callable[[], Verdict], *, end_descendants: Callable[[], None]) -> None:
        gang = SimpleNamespace(run=attempt, close=lambda: None)
        monkeypatch.setattr(supervisor_module, "Gang", lambda *_, **__: gang)
        monkeypatch.setattr(supervisor_module, "spawn", lambda *_: None)
        monkeypatch.setattr(supervisor_module, "end_descendants", end_descendants)
        monkeypatch.setattr(supervisor_module.Environments, "ensure", lambda *_: tmp_path)
        monkeypatch.setattr(FolderStore, "code", lambda *_: tmp_path)

    return play


def seal(store: FolderStore, folder: JobFolder) -> None:
    """Leave what the only replica of the current attempt leaves when it seals."""
    staging = store.staging("job-1")
    assert staging is not None
    out, report = staging.output("main", 0, "model"), folder.report(staging.attempt, "main", 0)
    for made in (out, report.parent):
        made.mkdir(parents=True, exist_ok=True)
    (out / "weights").write_bytes(b"1")
    report.write_text(dumps(Report(exit_code=ExitCode.SEALED, metrics={"auc": 0.7})))
    files = {"model": {"weights": 1}}
    part = PartManifest(job_id="job-1", attempt=staging.attempt, role="main", index=0, files=files)
    staging.sealed("main", 0).write_text(dumps(part))


def undying() -> None:
    raise BackendError("processes [7] do not die when killed")


def test_what_has_sealed_is_committed_though_its_worker_was_killed_then(
    supervisor: Supervisor, store: FolderStore, folder: JobFolder, play: Play
) -> None:
    def seal_and_die() -> Verdict:
        seal(store, folder)
        return Verdict(cause=Cause.RANK_LOST, message="the worker was killed by signal 9", advice="")

    play(seal_and_die, end_descendants=lambda: None)
    result = supervisor.work()
    assert isinstance(result, JobResult)
    assert result.outputs == {"model": ("volume://flights/model@1",)}
    assert result.metrics == {"auc": 0.7}


def test_what_seals_though_it_was_asked_for_its_room_is_committed(
    supervisor: Supervisor, store: FolderStore, folder: JobFolder, play: Play
) -> None:
    def seal_when_asked() -> Verdict:
        seal(store, folder)
        folder.ask_to_give_back("gang waits for 2 GPUs")
        return Verdict(cause=Cause.CANCELLED, message="", advice="")

    play(seal_when_asked, end_descendants=lambda: None)
    assert isinstance(supervisor.work(), JobResult)


@pytest.mark.parametrize(
    "verdict",
    [
        Verdict(cause=Cause.USER_ERROR, message="ValueError: no rows", advice="mend it"),
        Verdict(cause=Cause.RUN_TIMEOUT, message="it ran longer than 3 s", advice="raise it"),
    ],
)
def test_what_failed_before_it_was_asked_for_its_room_has_failed(
    supervisor: Supervisor, folder: JobFolder, play: Play, verdict: Verdict
) -> None:
    def fail() -> Verdict:
        folder.ask_to_give_back("gang waits for 2 GPUs")
        return verdict

    play(fail, end_descendants=lambda: None)
    assert supervisor.work() == verdict


def test_a_cancel_wins_over_a_preemption(supervisor: Supervisor, folder: JobFolder, play: Play) -> None:
    def asked_for_both() -> Verdict:
        folder.ask_to_give_back("gang waits for 2 GPUs")
        folder.ask_to_end(by_command("ada"))
        return Verdict(cause=Cause.CANCELLED, message="", advice="")

    play(asked_for_both, end_descendants=lambda: None)
    assert supervisor.work() == by_command("ada")


def test_what_does_not_die_gives_no_room_back(supervisor: Supervisor, folder: JobFolder, play: Play) -> None:
    def asked() -> Verdict:
        folder.ask_to_give_back("gang waits for 2 GPUs")
        return Verdict(cause=Cause.CANCELLED, message="", advice="")

    play(asked, end_descendants=undying)
    ended = supervisor.work()
    assert isinstance(ended, Verdict)
    assert ended.cause is Cause.BACKEND_ERROR


def test_what_does_not_die_is_told_and_hides_no_verdict(
    supervisor: Supervisor, store: FolderStore, play: Play
) -> None:
    verdict = Verdict(cause=Cause.USER_ERROR, message="ValueError: no rows", advice="mend it", rank=3)
    play(lambda: verdict, end_descendants=undying)
    assert supervisor.work() == verdict
    log, _ = store.ledger.read("job-1")
    assert {*log.splitlines()} == {b"[muster] left behind: processes [7] do not die when killed"}


def test_no_attempt_is_started_beside_what_does_not_die(
    supervisor: Supervisor, store: FolderStore, play: Play
) -> None:
    started: list[int] = []

    def lose_a_rank() -> Verdict:
        started.append(1)
        return Verdict(cause=Cause.RANK_LOST, message="killed by SIGKILL", advice="", rank=1)

    play(lose_a_rank, end_descendants=undying)
    ended = supervisor.work()
    assert isinstance(ended, Verdict)
    assert ended.cause is Cause.BACKEND_ERROR
    assert "do not die" in ended.message
    assert len(started) == 1
    assert b"rank 1: killed by SIGKILL" in store.ledger.read("job-1")[0]


def test_a_secret_in_a_message_that_is_cut_for_a_lost_worker_is_masked(
    orders: Orders, store: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    orders = replace(orders, claim=replace(orders.claim, job_id="job-2"))
    orders.places.job("job-2").root.mkdir(parents=True)
    store.ledger.create(
        "job-2", replace(SPEC, launcher=Launcher.DASK, roles=(Role(command=("train",), replicas=2),))
    )
    said = "the engine's worker was lost at 2026-11-26 14:03:22 UTC (exit status 1), and the driver goes on: another one begins"
    store.ledger.append("job-2", f"[rank 1] {said}\n".encode())
    secret = "hunter2-" + "0123456789abcdef" * 3
    cut = 400 - len(f"; before, {survived(store.ledger, 'job-2').short}…")
    message = f"{'x' * (cut - 10)}{secret} {'y' * 100}"  # ten characters of the secret come before the cut
    supervisor = Supervisor(orders, {"TOKEN": secret}, [])
    supervisor.end(Verdict(cause=Cause.USER_ERROR, message=message, advice="mend it", rank=0))
    ended = store.ledger.status("job-2").verdict
    assert ended is not None
    assert "before, the worker of replica 1 was lost" in ended.message
    assert secret[:4] not in ended.message
    assert secret[:4].encode() not in store.ledger.read("job-2")[0]
