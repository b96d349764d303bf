"""What ended jobs hold: checkpoints that become part of a version, whatever kills the process that takes them in."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from muster.core.data import OutputTarget
from muster.core.job import EVENTS, JobSpec, Role
from muster.core.origin import Origin
from muster.core.status import JobState, JobStatus
from muster.core.verdict import Cause, Verdict
from muster.volumes import held, tree
from muster.volumes.folder import FolderStore

SPEC = JobSpec(
    name="hills.search", image="python", image_digest="b3:" + "0" * 64, roles=(Role(command=("true",)),)
)
CANCELLED = Verdict(cause=Cause.CANCELLED, message="it was paused", advice="none")


def trial(store: FolderStore, number: int, files: dict[str, bytes]) -> str:
    """A trial's job that was paused with these checkpoints."""
    job_id = f"trial-{number}"
    store.ledger.create(job_id, replace(SPEC, origin=Origin(dag_id="hills", run_id="r", trial=number)))
    folder = store.stage(job_id).checkpoints
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    store.ledger.update(
        JobStatus(job_id=job_id, state=JobState.CANCELLED, submitted=1.0, ended=2.0, verdict=CANCELLED)
    )
    return job_id


def test_a_process_that_is_killed_at_any_file_leaves_no_version_and_the_next_one_makes_it_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FolderStore(tmp_path / "store")
    table = tmp_path / "table"
    table.mkdir()
    (table / "trials.csv").write_text("trial\n")
    wanted = {
        f"checkpoints/{number}": trial(store, number, {"a": b"1", "deep/b": bytes([number])})
        for number in range(2)
    }
    copied = tree.copy_file
    for last in range(4):
        child = os.fork()
        if not child:
            left = last

            def dies(source: str, target: str) -> None:
                nonlocal left
                if not left:
                    os._exit(9)
                left -= 1
                copied(source, target)

            monkeypatch.setattr(tree, "copy_file", dies)
            store.add("hills/search", table, request="ab" * 8, checkpoints=wanted)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
        assert store.volumes() == []
    made = store.add("hills/search", table, request="ab" * 8, checkpoints=wanted)
    assert store.add("hills/search", table, request="ab" * 8, checkpoints=wanted) == made
    data = store.path(made.address)
    assert {str(path.relative_to(data)): path.read_bytes() for path in data.rglob("*") if path.is_file()} == {
        "trials.csv": b"trial\n",
        "checkpoints/0/a": b"1",
        "checkpoints/0/deep/b": b"\0",
        "checkpoints/1/a": b"1",
        "checkpoints/1/deep/b": b"\1",
    }
    assert (store.layout.staging("trial-0") / "1" / "checkpoints" / "a").stat().st_mode & 0o200, (
        "what stays with the job can still be changed: it is not the version's file"
    )


@pytest.mark.parametrize("cause", [Cause.USER_ERROR, Cause.DISK_FULL])
def test_the_event_log_of_a_job_that_failed_stays_for_a_week_unless_the_disk_is_full(
    tmp_path: Path, cause: Cause
) -> None:
    store, job_id = FolderStore(tmp_path / "store"), "rows"
    outputs = {"made": OutputTarget(volume="hills/rows"), EVENTS: OutputTarget(volume="hills/events")}
    store.ledger.create(job_id, replace(SPEC, outputs=outputs))
    staging = store.stage(job_id)
    for output, name in (("made", "part-0"), (EVENTS, "events_1")):
        folder = staging.output("main", 0, output)
        folder.mkdir(parents=True)
        (folder / name).write_text("x")
    verdict = Verdict(cause=cause, message="it broke", advice="none")
    failed = JobStatus(
        job_id=job_id, state=JobState.FAILED, submitted=1.0, ended=time.time(), verdict=verdict
    )
    store.ledger.update(failed)
    store.ended.give_back(job_id, cause=cause)
    stays = cause is Cause.USER_ERROR
    left = [path.name for path in store.layout.staging(job_id).rglob("*") if path.is_file()]
    assert [name for name in left if name != "lock"] == (["events_1"] if stays else [])
    assert store.ended.is_fetchable(failed) is stays
    assert list(store.ended.leftovers(but=())) == ([] if stays else [job_id])
    later = replace(failed, ended=time.time() - (held.KEPT_DAYS + 1) * held.DAY_SECONDS)
    assert not store.ended.is_fetchable(later)
