"""What ``muster plan`` prints of a plan, and what of it is JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from muster.backends.forecast import Span
from muster.core.wire import plain
from muster.ext.plan.commands import show
from muster.ext.plan.plan import Deploys, Does, PlannedStage, RunPlan, Starts, When

KEPT = PlannedStage(
    task_id="etl", label="etl", does=Does.KEPT, why="as in run 7", image="etl", image_built=True
)
TRAINS = PlannedStage(
    task_id="train",
    label="train",
    does=Does.RUNS,
    image="train",
    image_built=False,
    needs={"cpu": 4.0, "memory": float(8 << 30), "gpu": 2.0},
    start=Starts(
        when=When.WAITS,
        queue="gpus",
        ahead=("a", "b", "c", "d"),
        starts=Span(p50=60.0, p90=120.0),
        ends=Span(p50=360.0, p90=600.0),
    ),
    warnings=("the image is not locked",),
    cpu_hours=1.0,
    gpu_hours=0.5,
)
NEVER = PlannedStage(
    task_id="big", label="big", does=Does.RUNS, start=Starts(when=When.NEVER, why="no node has 9 cards")
)
DEPLOYS = PlannedStage(
    task_id="deploy",
    label="deploy",
    does=Does.DEPLOYS,
    deploys=Deploys(name="rooms", model="volume://rooms/model@3", instead_of="volume://rooms/model@2"),
)


def plan(*stages: PlannedStage, **sums: Any) -> RunPlan:
    return RunPlan(dag_id="rooms", params={"epochs": 3}, stages=stages, **sums)


def shown(capsys: pytest.CaptureFixture[str], found: RunPlan) -> list[str]:
    show(found)
    return capsys.readouterr().out.splitlines()


def test_each_stage_is_a_line_and_what_has_no_room_stands_below(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, plan(KEPT, TRAINS, DEPLOYS, gpu_hours=0.5, ends=Span(p50=360.0, p90=600.0)))
    head, kept, trains, deploys, _, *told, _, last = lines
    assert head.split() == ["stage", "does", "image", "needs", "starts", "takes"]
    assert kept.split() == ["etl", "kept", "etl", "-", "-", "-"]
    assert trains.startswith("train ")
    assert "train, to be built" in trains
    assert "8 GiB" in trains
    assert trains.endswith("in 1 min 00 s to 2 min 00 s  5 min 00 s")
    assert deploys.split()[:2] == ["deploy", "deploys"]
    assert told == [
        "etl: as in run 7",
        "train: the image is not locked",
        "train: place 5 of queue gpus, behind a, b, c and 1 more",
        "deploy: rooms serves rooms/model@3, in place of rooms/model@2",
    ]
    assert last.startswith("rooms: 1 of 3 stages run, 1 deploys, 0.5 GPU-hours, ends in ")


def test_a_stage_that_never_starts_says_why_and_the_run_has_no_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = shown(capsys, plan(NEVER))
    assert "big: never: no node has 9 cards" in lines
    assert lines[-1] == "rooms: 1 of 1 stages run, when it ends is not known"


def test_a_plan_is_plain_json() -> None:
    found = json.loads(json.dumps(plain(plan(TRAINS, unseen="others' jobs")), allow_nan=False))
    assert (found["dag_id"], found["params"], found["unseen"]) == ("rooms", {"epochs": 3}, "others' jobs")
    (stage,) = found["stages"]
    assert (stage["does"], stage["start"]["when"], stage["start"]["ends"]) == (
        "runs",
        "waits",
        {"p50": 360.0, "p90": 600.0},
    )
