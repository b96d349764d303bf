"""Two replicas that write one file are told while they train."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from muster.core.job import Role
from muster.core.replica import Replica
from muster.worker import doubles
from muster.worker.doubles import Doubles

TWO = (Role(name="main", entrypoint="t:f", replicas=2),)


@pytest.fixture
def replicas(bench: Any) -> list[Replica]:
    """The two replicas of a gang, each with a folder of its own to write to, and all in one to seal in."""
    made = [bench.replica(roles=TWO, index=index, outputs=("model",)) for index in range(2)]
    own = [replace(each, staging={"model": str(bench.root / f"main-{each.index}")}) for each in made]
    for each in own:
        Path(each.staging["model"], "epochs").mkdir(parents=True)
    return own


def lines(replicas: list[Replica]) -> tuple[list[Doubles], list[str]]:
    said: list[str] = []
    return [Doubles(each, say=said.append) for each in replicas], said


def write(replica: Replica, name: str) -> None:
    Path(replica.staging["model"], name).write_text("x")


def test_the_second_replica_tells_it_once(replicas: list[Replica]) -> None:
    both, said = lines(replicas)
    write(replicas[0], "epochs/snapshot.pt")
    write(replicas[1], "epochs/rank-1.pt")
    for each in (*both, *both):
        each.look(now=True)
    assert said == []
    write(replicas[1], "epochs/snapshot.pt")
    for each in (*both, *both):
        each.look(now=True)
    assert said == [
        (
            "[muster] warning: replicas main-0 and main-1 both write 'epochs/snapshot.pt' of output 'model': "
            "that cannot become a version; a script that lets LOCAL_RANK 0 write wants `ranks=2` in one replica"
        )
    ]


def test_it_is_told_within_a_minute_and_nothing_is_read_before_it_is_due(
    replicas: list[Replica], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    scandir = os.scandir
    monkeypatch.setattr(doubles.os, "scandir", lambda path: looked.append(path) or scandir(path))
    both, _ = lines(replicas)
    both[0].look()
    assert looked == []
    # the first lists what it wrote, then the second looks: at worst two turns after the write
    assert 2 * doubles.EVERY_SECONDS < 60
    assert 0 < both[0].left() <= doubles.EVERY_SECONDS


def test_no_file_of_an_output_is_opened(replicas: list[Replica], monkeypatch: pytest.MonkeyPatch) -> None:
    both, said = lines(replicas)
    for each in replicas:
        for number in range(100):
            write(each, f"{number}.pt")
    opened: list[str] = []
    plain = open
    monkeypatch.setattr(
        "builtins.open", lambda path, *how, **more: opened.append(path) or plain(path, *how, **more)
    )
    for each in both:
        each.look(now=True)
    assert "'0.pt' and 99 more of output" in said[0]
    assert [path for path in opened if "main-" in path and not path.endswith((".writes", ".new"))] == []
    assert len(opened) == 3


def test_a_job_of_one_replica_looks_at_nothing(bench: Any) -> None:
    one = Doubles(bench.replica(entrypoint="t:f", outputs=("model",)), say=print)
    one.look(now=True)
    assert one.left() == float("inf")
    assert list((bench.root / "sealed").iterdir()) == []
