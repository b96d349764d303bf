"""What a look at a job notes beside its status: when it holds its resources, and that it does nothing."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest
from tests.unit.backends.kubernetes.cluster_jobs import World, world
from tests.unit.backends.kubernetes.fake_cluster import BARE, NAMESPACE

from muster.backends.kubernetes.api.kinds import WORKLOAD
from muster.backends.kubernetes.labels import MAIN
from muster.core.status import JobState
from muster.core.tally import Tally
from muster.core.verdict import Cause
from muster.volumes.service.tokens import TokenKind, operator_token

PLACED = "2026-11-30T08:00:00Z"


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path, missing=BARE, queue=None) as found:
        yield found


def runs(bare: World, job_id: str) -> None:
    """Have the job's pod run."""
    pod = bare.pod(job_id)
    pod["status"] |= {
        "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": PLACED}],
        "containerStatuses": [{"name": MAIN, "state": {"running": {"startedAt": PLACED}}}],
    }
    bare.cluster.put(pod)


def only_reads(bare: World) -> str:
    return operator_token(bare.service.keys, lifetime_seconds=60, kind=TokenKind.READER)


def test_since_when_it_holds_what_it_asked_for(bare: World) -> None:
    backend = bare.backend()
    backend.submit(bare.job(replicas=1), job_id="held", tally=Tally(user="ada"))
    backend.status("held")
    assert backend.store.ledger.tally("held") == Tally(user="ada")
    runs(bare, "held")
    assert backend.status("held").state is JobState.RUNNING
    (held,) = backend.store.ledger.tally("held").times
    placed = datetime(2026, 11, 30, 8, tzinfo=timezone.utc).timestamp()
    assert (held.since, held.until, held.replicas) == (placed, None, 1)
    backend.cancel("held", wait=False)
    status = backend.status("held")
    assert status.state is JobState.CANCELLED
    assert [each.until for each in backend.store.ledger.tally("held").times] == [status.ended]


def test_what_has_ended_holds_its_quota_until_kueue_has_seen_its_end_or_let_its_workload_go(
    tmp_path: Path,
) -> None:
    with world(tmp_path) as kueue:
        backend, job, begun = (
            kueue.backend(),
            kueue.job(replicas=1),
            datetime.fromisoformat(PLACED).timestamp(),
        )
        ledger, conditions = backend.store.ledger, [condition("Admitted", PLACED)]
        for job_id in ("finished", "gone", "goes-on"):
            backend.submit(job, job_id=job_id)
            (root,) = kueue.roots(job_id)
            owners = [{"name": job_id, "uid": root["metadata"]["uid"]}]
            about = {"kueue.x-k8s.io/job-uid": root["metadata"]["uid"]}
            metadata = {"name": job_id, "namespace": NAMESPACE, "ownerReferences": owners, "labels": about}
            head = {"apiVersion": WORKLOAD.api_version, "kind": "Workload", "metadata": metadata, "spec": {}}
            workload = kueue.cluster.put({**head, "status": {"conditions": conditions}})
            backend.status(job_id)
            if job_id != "goes-on":
                ledger.update(replace(ledger.status(job_id), state=JobState.SUCCEEDED, ended=begun + 30.0))
                kueue.cluster.remove(workload, WORKLOAD)
                assert backend.runner.clear(job, job_id)
        finished = [*conditions, condition("Finished", "2026-11-30T08:00:50Z")]
        head["metadata"] = {
            **metadata,
            "name": "finished",
            "ownerReferences": [{"name": "finished", "uid": "1"}],
        }
        kueue.cluster.put({**head, "status": {"conditions": finished}})
        now = time.time()
        backend.statuses(["finished", "gone", "goes-on"])
        untils = {
            each: [time.until for time in ledger.tally(each).times]
            for each in ("finished", "gone", "goes-on")
        }
        (gone,) = untils.pop("gone")
        assert untils == {"finished": [begun + 50.0], "goes-on": [None]}
        assert gone >= now
        (log,) = (kueue.service.root / "usage").glob("*.jsonl")
        lines = [json.loads(line) for line in log.read_text().split()]
        assert sorted((line[1], line[12][0][1]) for line in lines[:2]) == [
            ("finished", begun + 30.0),
            ("gone", begun + 30.0),
        ]
        assert sorted((line[1], line[12][0][1]) for line in lines[2:]) == [
            ("finished", begun + 50.0),
            ("gone", round(gone, 1)),
        ]


def condition(name: str, since: str) -> dict[str, str]:
    return {"type": name, "status": "True", "lastTransitionTime": since}


def test_whose_token_only_reads_looks_and_notes_nothing(bare: World) -> None:
    backend = bare.backend()
    backend.submit(bare.job(replicas=1), job_id="read")
    runs(bare, "read")
    reader = bare.backend("reader", token=only_reads(bare))
    for _ in range(2):
        assert reader.status("read").state is JobState.RUNNING
    assert backend.store.ledger.tally("read") == Tally()
    backend.status("read")
    assert len(backend.store.ledger.tally("read").times) == 1


def test_whose_token_only_reads_is_told_that_an_end_is_due(bare: World) -> None:
    backend = bare.backend()
    backend.submit(bare.job(replicas=1, idle_seconds=3600.0), job_id="due")
    runs(bare, "due")
    backend.store.ledger.append("due", b"[use main-0] muster: quiet_seconds=3700\n")
    seen = bare.backend("reader", token=only_reads(bare)).status("due")
    assert (seen.state, seen.verdict) == (JobState.RUNNING, None)
    assert "its end is due, and is not written down here: the token is a reader's" in seen.reason
    assert backend.status("due").verdict.cause is Cause.IDLE  # type: ignore[union-attr]


def test_it_is_warned_of_once_however_many_look_and_ended(bare: World) -> None:
    backend = bare.backend()
    backend.submit(bare.job(replicas=1, idle_seconds=3600.0), job_id="idle")
    runs(bare, "idle")

    def look(quiet: float) -> Cause | None:
        backend.store.ledger.append("idle", f"[use main-0] muster: quiet_seconds={quiet}\n".encode())
        found = [bare.backend(f"looks-{quiet}-{number}").status("idle").verdict for number in range(2)]
        assert found[0] == found[1]
        return None if found[0] is None else found[0].cause

    assert look(1000) is None
    assert look(1900) is None
    log = backend.store.ledger.read("idle")[0].decode()
    assert log.count("[muster] warning: idle for 31 min 40 s") == 1
    assert look(3700) is Cause.IDLE
    assert not bare.roots("idle")


def test_whose_token_only_reads_sees_a_gang_that_does_nothing_and_warns_of_nothing(
    bare: World, caplog: pytest.LogCaptureFixture
) -> None:
    backend = bare.backend()
    backend.submit(bare.job(replicas=1, idle_seconds=3600.0), job_id="idle")
    runs(bare, "idle")
    backend.store.ledger.append("idle", b"[use main-0] muster: quiet_seconds=1900\n")
    assert bare.backend("reader", token=only_reads(bare)).status("idle").state is JobState.RUNNING
    assert "not in the log of job idle: warning: idle for 31 min 40 s" in caplog.text
    assert b"warning" not in backend.store.ledger.read("idle")[0]
