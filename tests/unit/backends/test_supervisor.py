"""The supervisor's steps between two moments that a kill rarely hits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from muster.backends.local.machine import Machine
from muster.backends.local.orders import Orders
from muster.backends.local.queue import Claim
from muster.backends.local.supervisor import Supervisor
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


def test_what_has_sealed_is_committed_though_its_worker_was_killed_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FolderStore(tmp_path / "store")
    store.ledger.create("job-1", SPEC)
    claim = Claim(job_id="job-1", memory_gib=1, gpus=(), port=0)
    machine = Machine(memory_gib=1)
    orders = Orders(
        claim=claim, machine=machine, home=str(tmp_path), cache=str(tmp_path), worker="", claim_handle=0
    )
    supervisor: Any = Supervisor(orders, {}, [])
    folder = orders.places.job("job-1")

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
