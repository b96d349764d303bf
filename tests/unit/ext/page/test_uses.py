"""Lineage forward, and the documents beside a version: from what jobs read and made."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.ext.page.boards import Ledgered

from muster.core.data import Input, Pinned
from muster.core.job import JobSpec, Role
from muster.core.origin import Origin
from muster.core.status import JobResult, JobState, JobStatus
from muster.ext.page.board import Job
from muster.ext.page.uses import Uses

DIGEST = "b3:" + "0" * 64


def job(name: str, *, reads: dict[str, tuple[str, ...]], makes: tuple[str, ...] = ()) -> Job:
    inputs = {
        key: Input(versions=tuple(Pinned(address=a, digest=DIGEST) for a in given), many=True)
        for key, given in reads.items()
    }
    spec = JobSpec(
        name=name,
        image="etl",
        image_digest=DIGEST,
        roles=(Role(entrypoint="a.b:c"),),
        inputs=inputs,
        origin=Origin(dag_id="d", run_id="r", task_id=name),
    )
    result = JobResult(outputs={"made": makes}) if makes else None
    status = JobStatus(job_id=name, state=JobState.SUCCEEDED, submitted=1.0, result=result)
    return Job(job_id=name, status=status, spec=spec)


ROWS, MODEL, CARD, DOCS = (f"volume://a/{name}@1" for name in ("rows", "model", "card", "docs"))


@pytest.fixture
def uses(tmp_path: Path) -> Uses:
    board = Ledgered(
        tmp_path,
        job("card", reads={"model": (MODEL,)}, makes=(CARD,)),
        job("train", reads={"train": (ROWS,), "test": (ROWS,)}, makes=(MODEL,)),
        job("broken", reads={"train": (ROWS,)}),
        Job(job_id="torn", error="its spec cannot be read"),
    ).board
    board.look()
    return Uses(board, board.dags(lambda _: True))


def test_a_version_knows_the_jobs_that_read_it_under_each_name(uses: Uses) -> None:
    assert [(use.job.job_id, use.name) for use in uses.of(ROWS)] == [
        ("train", "train"),
        ("train", "test"),
        ("broken", "train"),
    ]
    assert uses.of(CARD) == []


def test_what_was_made_of_a_version_is_walked_to_the_end_and_each_once_for_each_name(uses: Uses) -> None:
    found = [(each.address, each.depth, each.parent, each.name) for each in uses.descendants(ROWS)]
    assert found == [(MODEL, 1, ROWS, "train"), (MODEL, 1, ROWS, "test"), (CARD, 2, MODEL, "model")]
