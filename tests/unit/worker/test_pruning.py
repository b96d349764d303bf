"""Of the checkpoints that a gang writes, the newest whole ones stay."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from muster.core.job import Role
from muster.core.replica import Replica
from muster.worker.pruning import QUIET_SECONDS, Pruning

NOW = 1_000_000.0


@pytest.fixture
def first(bench: Any) -> Replica:
    """The first of two replicas of a job that keeps two checkpoints."""
    made: Replica = bench.replica(roles=(Role(entrypoint="t:f", replicas=2),))
    Path(made.checkpoints).mkdir(exist_ok=True)
    return replace(made, spec=replace(made.spec, keep=2))


def save(replica: Replica, path: str, *, seconds_ago: float) -> None:
    """Write a file of a checkpoint, at that time; folders keep the time of their making, as long ago."""
    file = Path(replica.checkpoints, path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("weights")
    for each in (file, *file.parents[: len(Path(path).parts) - 1]):
        os.utime(each, (NOW - seconds_ago, NOW - seconds_ago))


def left(replica: Replica) -> list[str]:
    return sorted(each.name for each in Path(replica.checkpoints).iterdir())


def prune(replica: Replica) -> list[str]:
    said: list[str] = []
    Pruning(replica, say=said.append, now=lambda: NOW).look(now=True)
    return said


def test_the_newest_stay_whatever_their_names(first: Replica) -> None:
    for name, age in (("step-9.pt", 400), ("step-10.pt", 300), ("step-11/part-0", 200), ("a.pt", 100)):
        save(first, name, seconds_ago=age)
    assert prune(first) == []
    assert left(first) == ["a.pt", "step-11"]


def test_one_that_is_being_written_counts_as_none(first: Replica) -> None:
    for name, age in (("1", 400), ("2", 300), ("3/part-0", 200), ("3/part-1", QUIET_SECONDS - 1)):
        save(first, name, seconds_ago=age)
    prune(first)
    assert left(first) == ["1", "2", "3"]
    save(first, "3/part-1", seconds_ago=QUIET_SECONDS + 1)
    prune(first)
    assert left(first) == ["2", "3"]


def test_at_the_end_every_one_is_whole(first: Replica) -> None:
    for name, age in (("1", 3), ("2", 2), ("3", 1)):
        save(first, name, seconds_ago=age)
    Pruning(first, say=print, now=lambda: NOW).look(ended=True)
    assert left(first) == ["2", "3"]


def test_links_and_names_with_a_dot_are_neither_counted_nor_deleted(first: Replica) -> None:
    for name, age in (("1", 400), ("2", 300), (".state", 500)):
        save(first, name, seconds_ago=age)
    Path(first.checkpoints, "latest").symlink_to("2")
    prune(first)
    assert left(first) == [".state", "1", "2", "latest"]


def test_what_a_killed_worker_was_deleting_is_deleted(first: Replica) -> None:
    save(first, ".muster-deletes-1/part-0", seconds_ago=400)
    prune(first)
    assert left(first) == []


def test_another_replica_and_a_job_that_keeps_all_delete_nothing(first: Replica) -> None:
    for name in ("1", "2", "3"):
        save(first, name, seconds_ago=400)
    prune(replace(first, index=1))
    prune(replace(first, spec=replace(first.spec, keep=0)))
    assert left(first) == ["1", "2", "3"]


def test_what_cannot_be_deleted_is_said_once(first: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("1", "2", "3"):
        save(first, name, seconds_ago=400)
    said: list[str] = []
    pruning = Pruning(first, say=said.append, now=lambda: NOW)

    def refused(path: str) -> None:
        raise PermissionError(1, "Operation not permitted", path)

    monkeypatch.setattr(os, "unlink", refused)
    pruning.look(now=True)
    pruning.look(now=True)
    assert said == ["[muster] warning: checkpoint '1' cannot be deleted: Operation not permitted"]
