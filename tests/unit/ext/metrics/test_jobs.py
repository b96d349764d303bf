"""Jobs as metrics: those in each state, an end that is counted once, and limits that are outlived."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.ext.metrics.conftest import Scrapes, values

from muster.core.job import JobSpec, Role
from muster.core.status import JobResult, JobState, JobStatus
from muster.core.verdict import Cause, Verdict
from muster.ext.metrics.sources import Jobs, overdue
from muster.ext.metrics.table import MOST_LABELS, MetricsPart
from muster.volumes.folder import FolderStore
from muster.volumes.ledger import FolderLedger

SPEC = JobSpec(
    name="flights.train", image="train", image_digest="b3:" + "0" * 64, roles=(Role(entrypoint="a.b:c"),)
)


@pytest.fixture
def ledger(tmp_path: Path) -> FolderLedger:
    return FolderStore(tmp_path / "store").ledger


class Look:
    """A ledger, and its jobs as each scrape tells them."""

    def __init__(self, ledger: FolderLedger, scrapes: Scrapes, lines: tuple[str, ...] = ("a", "b")) -> None:
        jobs = Jobs(lambda: lines)
        self._scrape = scrapes.of({MetricsPart.JOBS: lambda: jobs.look(ledger)})

    def __call__(self) -> Mapping[tuple[str, ...], float]:
        return values(self._scrape())


def put(ledger: FolderLedger, job_id: str, state: JobState, *, queue: str = "a", **told: object) -> None:
    ledger.create(job_id, replace(SPEC, queue=queue))
    status = ledger.status(job_id)
    if state.ended and state is not JobState.SUCCEEDED:
        told.setdefault("verdict", Verdict(cause=Cause.USER_ERROR, message="m", advice="a"))
    if state is JobState.SUCCEEDED:
        told["result"] = JobResult()
    ledger.update(replace(status, state=state, **told))  # type: ignore[arg-type]


def test_jobs_are_told_by_state_and_ended_ones_of_before_are_not_counted(
    ledger: FolderLedger, scrapes: Scrapes
) -> None:
    for state in JobState:
        put(ledger, f"one-{state.value}", state)
    put(ledger, "two-queued", JobState.QUEUED)
    (ledger.check("one-committing") / "status.json").write_text("{")
    found = Look(ledger, scrapes)()
    states = {labels[1]: number for labels, number in found.items() if labels[0] == "muster_jobs"}
    assert states == {"queued": 2, "preparing": 1, "running": 1, "committing": 0, "unreadable": 1}
    ended = {labels[1]: number for labels, number in found.items() if labels[0] == "muster_jobs_ended_total"}
    assert set(ended.values()) == {0.0}
    assert {"succeeded", "user error", "can never be scheduled", "cancelled"} <= ended.keys()


def test_an_end_is_counted_once_with_its_wait_and_its_run(ledger: FolderLedger, scrapes: Scrapes) -> None:
    look = Look(ledger, scrapes)
    look()
    put(ledger, "quick", JobState.QUEUED, queue="b")
    status = ledger.status("quick")
    began = status.submitted + 100
    ledger.update(
        replace(status, state=JobState.SUCCEEDED, started=began, ended=began + 2, result=JobResult())
    )
    verdict = Verdict(cause=Cause.UNSCHEDULABLE, message="m", advice="a")
    put(ledger, "never", JobState.FAILED, verdict=verdict, ended=time.time())
    for _ in range(3):
        found = look()
    assert found["muster_jobs_ended_total", "succeeded"] == 1
    assert found["muster_jobs_ended_total", "can never be scheduled"] == 1
    assert found["muster_job_wait_seconds_count", "b"] == 1
    assert found["muster_job_wait_seconds_sum", "b"] == pytest.approx(100)
    assert found["muster_job_wait_seconds_bucket", "60.0", "b"] == 0
    assert found["muster_job_wait_seconds_bucket", "300.0", "b"] == 1
    assert found["muster_job_run_seconds_count", "succeeded"] == 1
    assert found["muster_job_run_seconds_count", "failed"] == 0, "it never began"


def test_a_wait_ends_with_the_start_and_is_not_counted_again_at_the_end(
    ledger: FolderLedger, scrapes: Scrapes
) -> None:
    put(ledger, "ran-before", JobState.RUNNING, started=time.time())
    look = Look(ledger, scrapes)
    look()
    put(ledger, "new", JobState.RUNNING, started=time.time())
    assert look()["muster_job_wait_seconds_count", "a"] == 1
    for job_id in ("new", "ran-before"):
        status = ledger.status(job_id)
        ledger.update(replace(status, state=JobState.SUCCEEDED, ended=time.time(), result=JobResult()))
    found = look()
    assert found["muster_job_wait_seconds_count", "a"] == 1
    assert found["muster_job_run_seconds_count", "succeeded"] == 2


def test_a_job_that_gc_deleted_takes_nothing_back(ledger: FolderLedger, scrapes: Scrapes) -> None:
    look = Look(ledger, scrapes)
    look()
    put(ledger, "gone", JobState.FAILED, ended=time.time())
    assert look()["muster_jobs_ended_total", "user error"] == 1
    for path in sorted(ledger.check("gone").iterdir()):
        path.unlink()
    ledger.check("gone").rmdir()
    found = look()
    assert found["muster_jobs_ended_total", "user error"] == 1
    assert found["muster_jobs", "unreadable"] == 0


def test_queues_that_jobs_name_cannot_make_series_without_bound(
    ledger: FolderLedger, scrapes: Scrapes
) -> None:
    look = Look(ledger, scrapes, lines=())
    look()
    for number in range(MOST_LABELS + 5):
        put(ledger, f"job-{number}", JobState.RUNNING, queue=f"made-up-{number}", started=time.time())
    counts = {key[1]: n for key, n in look().items() if key[0] == "muster_job_wait_seconds_count"}
    assert len(counts) == MOST_LABELS + 1
    assert counts["other"] == 5


def test_ended_jobs_are_read_once(ledger: FolderLedger, scrapes: Scrapes) -> None:
    for number in range(20):
        put(ledger, f"done-{number}", JobState.FAILED, ended=time.time())
    put(ledger, "runs", JobState.RUNNING, started=time.time())
    asked: list[list[str]] = []
    statuses = ledger.statuses

    def counted(job_ids: list[str]) -> list[JobStatus]:
        asked.append(list(job_ids))
        return statuses(job_ids)

    ledger.statuses = counted  # type: ignore[method-assign, assignment]
    look = Look(ledger, scrapes)
    for _ in range(3):
        look()
    assert [len(each) for each in asked] == [21, 1, 1]


@pytest.mark.parametrize(
    ("told", "limit"),
    [
        ({}, ""),
        ({"submitted": -110.0}, "queue"),
        ({"submitted": -110.0, "started": -100.0, "state": JobState.RUNNING}, ""),
        ({"submitted": -900.0, "started": -800.0, "state": JobState.RUNNING}, "run"),
        ({"submitted": -900.0, "started": -800.0, "state": JobState.COMMITTING}, ""),
        ({"submitted": -900.0, "started": -800.0, "state": JobState.RUNNING, "restarts": 6}, ""),
        ({"submitted": -900.0, "started": -800.0, "state": JobState.QUEUED}, ""),  # it waits anew
    ],
)
def test_a_limit_is_outlived_only_where_no_wait_explains_it(told: dict[str, object], limit: str) -> None:
    now = 10_000.0
    spec = replace(SPEC, queue_timeout_seconds=100, run_timeout_seconds=500, grace_seconds=30)
    times = {name: now + value for name, value in told.items() if isinstance(value, float)}
    status = JobStatus(job_id="j", **{"state": JobState.QUEUED, "submitted": now, **told, **times})  # type: ignore[arg-type]
    assert overdue(status, spec, now=now) == limit
