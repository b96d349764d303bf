"""What a search would cost: by its own rules, at the pace of earlier jobs."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from muster.core.job import JobSpec, Role
from muster.core.origin import Origin
from muster.core.status import JobState, JobStatus
from muster.ext.search.planned import Pace, estimate, pace
from muster.ext.search.simulation import play
from muster.ext.search.space import choice, uniform
from muster.ext.search.spec import Budget, Mode, Sampler, SearchSpec, Stopping
from muster.volumes.folder import FolderStore

SPEC = SearchSpec(
    space={"rate": uniform(0, 1)}, metric="auc", trials=27, rungs=(1, 3, 9), until="epochs", seed=1
)
NO_PACE = Pace()


@pytest.mark.parametrize("mode", Mode)
def test_a_search_costs_less_than_its_grid_and_the_same_when_asked_again(mode: Mode) -> None:
    found = estimate(replace(SPEC, mode=mode), workers=4, pace=NO_PACE)
    assert found == estimate(replace(SPEC, mode=mode), workers=4, pace=NO_PACE)
    cost = found.facts
    assert (cost.trials, cost.at_once, cost.resource, cost.full) == (27, 4, "epochs", 243)
    assert 27 < cost.units.p50 <= cost.units.p90 <= cost.most < 243
    assert (cost.seconds, cost.gpu_hours, cost.repeated) == (None, None, 0)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_no_order_of_trials_costs_more_than_one_in_which_the_worst_come_first(workers: int) -> None:
    """The figure that is called the most holds for each order of five trials' qualities."""
    spec = replace(SPEC, space={"n": choice(*range(5))}, trials=5, rungs=(1, 2, 4), sampler=Sampler.GRID)
    most = estimate(spec, workers=workers, pace=NO_PACE).facts.most

    def trained(order: tuple[int, ...]) -> float:
        def quality(params: Mapping[str, Any], _: float) -> float:
            return order[params["n"]]

        return play(spec, quality, workers=workers).trained

    dearest = max(trained(order) for order in itertools.permutations(range(5)))
    assert dearest == most if workers == 1 else dearest <= most


def test_halving_costs_what_its_rungs_say_and_none_the_whole_grid() -> None:
    halving = estimate(replace(SPEC, stopping=Stopping.HALVING), workers=4, pace=NO_PACE).facts
    assert halving.units.p50 == halving.most == 27 * 1 + 9 * 2 + 3 * 6
    whole = estimate(replace(SPEC, stopping=Stopping.NONE), workers=4, pace=NO_PACE).facts
    assert whole.units.p50 == whole.most == whole.full


def test_without_checkpoints_what_was_trained_is_trained_again() -> None:
    spec = replace(SPEC, stopping=Stopping.HALVING)
    with_them = estimate(spec, workers=4, pace=NO_PACE, checkpoints=True).facts
    without = estimate(spec, workers=4, pace=NO_PACE, checkpoints=False).facts
    assert with_them.repeated == 0
    assert without.repeated > 0
    assert without.units.p50 - with_them.units.p50 == without.repeated
    assert without.full == with_them.full


def test_what_earlier_trials_did_counts_before_what_the_code_says() -> None:
    anew, went_on = Pace(again=4, anew=4), Pace(again=4, anew=1)
    assert estimate(SPEC, workers=4, pace=anew, checkpoints=True).facts.checkpoints is False
    assert estimate(SPEC, workers=4, pace=went_on, checkpoints=False).facts.checkpoints is True
    assert estimate(SPEC, workers=4, pace=NO_PACE).facts.checkpoints is None


def test_a_pace_gives_times_and_cards_and_more_places_make_it_faster() -> None:
    at = Pace(units=(10.0, 12.0), start=5.0, stop=1.0)
    few = estimate(SPEC, workers=2, pace=at, gpus=4, cpus=8)
    many = estimate(SPEC, workers=8, pace=at, gpus=4, cpus=8)
    assert few.facts.seconds is not None
    assert many.facts.seconds is not None
    assert few.facts.seconds.p50 > 1.5 * many.facts.seconds.p50
    assert few.facts.gpu_hours is not None
    assert few.facts.cpu_hours == 2 * few.facts.gpu_hours
    trained_hours = few.facts.units.p50 * 11 * 4 / 3600
    assert trained_hours < few.facts.gpu_hours < 1.5 * trained_hours
    assert len(few.durations) >= 10


def test_a_budget_bounds_what_it_costs_and_one_of_time_only_where_the_pace_is_known() -> None:
    at = Pace(units=(10.0,))
    short = replace(SPEC, budget=Budget(seconds=100))
    assert (
        estimate(short, workers=2, pace=at).facts.units.p50
        < estimate(SPEC, workers=2, pace=at).facts.units.p50
    )
    assert estimate(short, workers=2, pace=NO_PACE) == estimate(SPEC, workers=2, pace=NO_PACE)
    few = estimate(replace(SPEC, budget=Budget(resource=20)), workers=2, pace=NO_PACE).facts
    assert few.most <= 20 + 2 * 9


def test_a_small_space_has_no_more_trials_than_points_and_no_more_places() -> None:
    cost = estimate(replace(SPEC, space={"n": choice(1, 2, 3)}), workers=8, pace=NO_PACE).facts
    assert (cost.trials, cost.at_once) == (3, 3)


def test_a_search_of_a_thousand_trials_is_played_in_seconds() -> None:
    began = time.process_time()
    estimate(replace(SPEC, trials=1000), workers=64, pace=Pace(units=(60.0,)))
    assert time.process_time() - began < 5


def test_the_pace_is_what_the_newest_jobs_of_the_task_told(tmp_path: Path) -> None:
    ledger = FolderStore(tmp_path).ledger

    def job(job_id: str, task: str, steps: range, *, follows: str | None = None) -> None:
        spec = JobSpec(
            name="hills.search",
            image="python",
            image_digest="b3:" + "0" * 64,
            roles=(Role(command=("true",)),),
            origin=Origin(dag_id="hills", run_id="r", task_id=task),
            follows=follows,
        )
        ledger.create(job_id, spec)
        for step in steps:
            ledger.append(job_id, f"[rank 0] muster: epoch={step}/9 auc=0.5\n".encode())
        ended = JobState.CANCELLED if follows is None else JobState.SUCCEEDED
        ledger.update(JobStatus(job_id=job_id, state=ended, submitted=1.0, started=2.0, ended=100.0))

    job("a", "search", range(1, 4))
    job("b", "search", range(4, 10), follows="a")
    job("c", "search", range(1, 10), follows="a")
    job("other", "train", range(1, 10))
    found = pace(ledger, "hills", "search", "auc")
    assert (found.again, found.anew, found.goes_on) == (2, 1, True)
    assert len(found.units) <= 3
    assert pace(ledger, "hills", "search", "f1") == NO_PACE
    assert pace(ledger, "other", "search", "auc") == NO_PACE
