"""Copies of what a job writes grow while it runs, and hold all that it left."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from muster.cli.tensorboard import EventFollower
from muster.core.data import OutputTarget
from muster.core.job import EVENTS, JobSpec, Role
from muster.core.status import JobState, JobStatus
from muster.core.verdict import Cause, Verdict
from muster.ext.engines.commands import BEGINS
from muster.volumes.folder import FolderStore

SPEC = JobSpec(
    name="rows",
    image="spark",
    image_digest="b3:" + "0" * 64,
    roles=(Role(command=("true",)),),
    outputs={EVENTS: OutputTarget(volume="hills/events")},
)
LOG = "eventlog_v2_app-1"


def test_the_last_lines_of_a_job_that_failed_are_copied(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "store")
    store.ledger.create("rows", SPEC)
    runs = JobStatus(job_id="rows", state=JobState.RUNNING, submitted=1.0)
    store.ledger.update(runs)
    log = store.stage("rows").output("main", 0, EVENTS) / LOG
    log.mkdir(parents=True)
    (log / "appstatus_app-1.inprogress").touch()
    (log / "events_1_app-1").write_text("began\n")
    following = EventFollower(store, "rows", tmp_path / "copies", begins=BEGINS)
    copies = tmp_path / "copies" / "main-0" / EVENTS / LOG
    assert not following.look()
    assert (copies / "events_1_app-1").read_text() == "began\n"

    (log / "events_1_app-1").write_text("began\nfailed\n")
    (log / "appstatus_app-1.inprogress").rename(log / "appstatus_app-1")
    verdict = Verdict(cause=Cause.USER_ERROR, message="no rows", advice="none")
    store.ledger.update(replace(runs, state=JobState.FAILED, ended=2.0, verdict=verdict))
    store.ended.give_back("rows", cause=verdict.cause)
    assert following.look(), "it has ended"
    assert (copies / "events_1_app-1").read_text() == "began\nfailed\n"
    assert sorted(path.name for path in copies.iterdir()) == ["appstatus_app-1", "events_1_app-1"]


def test_of_a_job_that_left_nothing_the_copies_stay(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "store")
    store.ledger.create("rows", SPEC)
    verdict = Verdict(cause=Cause.CANCELLED, message="told to", advice="none")
    store.ledger.update(
        JobStatus(job_id="rows", state=JobState.CANCELLED, submitted=1.0, ended=2.0, verdict=verdict)
    )
    assert EventFollower(store, "rows", tmp_path / "copies", begins=BEGINS).look()
