"""A search that is played without jobs: which trials go on, what is the best, and that no restart changes it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from muster.backends.search.rules import Ask, Close, Spent, Take, Wait, next_move, passes
from muster.backends.search.simulation import Costs, Played, play
from muster.backends.search.state import Phase, SearchState
from muster.core.errors import SpecError
from muster.core.search import Budget, Event, Mode, Sampler, SearchSpec, Stopping, What
from muster.core.space import choice, loguniform, uniform
from muster.core.wire import dumps, loads

SPACE = {
    "rate": loguniform(1e-4, 1e-1),
    "optimizer": choice("adam", "sgd"),
    "momentum": uniform(0, 1).when(optimizer="sgd"),
}
SPEC = SearchSpec(space=SPACE, metric="auc", trials=27, rungs=(1, 3, 9), seed=5)


def curve(params: Mapping[str, Any], epoch: float) -> float:
    """Best at a rate of 0.01 with sgd; a trial that is better later is better at each rung, too."""
    quality = 1 - abs(math.log10(params["rate"]) + 2) / 4
    return (quality + 0.02 * params.get("momentum", 0)) * (1 - math.exp(-epoch / 4))


def told(state: SearchState, number: int, rung: int, value: float | None) -> None:
    state.apply(Event(what=What.REACHED, at=0, trial=number, rung=rung, value=value))


def begun(spec: SearchSpec, count: int) -> SearchState:
    """A search with trials that all run."""
    state = SearchState(spec)
    for number in range(count):
        state.apply(Event(what=What.ASKED, at=0, trial=number, params={"rate": 0.01}))
        state.apply(Event(what=What.STARTED, at=0, trial=number, job_id=f"j-{number}", rung=0))
    return state


@pytest.mark.parametrize("stopping", Stopping)
@pytest.mark.parametrize("sampler", [Sampler.RANDOM, Sampler.TPE])
def test_it_finds_what_is_best_and_no_restart_of_its_driver_changes_anything(
    stopping: Stopping, sampler: Sampler
) -> None:
    spec = replace(SPEC, stopping=stopping, sampler=sampler)
    whole = play(spec, curve, workers=3)
    assert whole.value == max(each.value for each in whole.state.trials if each.value is not None)
    assert whole.events == play(spec, curve, workers=3, restart=lambda _: True).events
    assert [loads(Event, dumps(event)) for event in whole.events] == whole.events
    assert not whole.state.running
    full = play(replace(spec, stopping=Stopping.NONE), curve, workers=3)
    if stopping is not Stopping.NONE:
        assert whole.state.resource <= full.state.resource / 2
    assert {len(each.params) for each in whole.state.trials} == {2, 3}, "momentum is asked with sgd alone"


def test_asha_takes_a_third_and_takes_up_again_who_becomes_one_of_it() -> None:
    state = begun(replace(SPEC, trials=9), 7)
    for number, value in enumerate((0.5, 0.6)):
        told(state, number, 0, value)
        assert not passes(state, state.trials[number], 0), "two are too few for one place"
        state.apply(Event(what=What.PAUSED, at=0, trial=number, rung=0))
    told(state, 2, 0, 0.1)
    assert not passes(state, state.trials[2], 0)
    state.apply(Event(what=What.PAUSED, at=0, trial=2, rung=0))
    assert next_move(state, Spent()) == Take(1, 1), "of three the best goes on"
    state.apply(Event(what=What.STARTED, at=0, trial=1, job_id="j-1b", rung=1))
    assert next_move(state, Spent()) == Ask()
    for number in (3, 4):
        told(state, number, 0, 0.2)
        state.apply(Event(what=What.PAUSED, at=0, trial=number, rung=0))
    told(state, 5, 0, 0.9)
    assert passes(state, state.trials[5], 0), "it is among the best two of six at once"


def test_halving_waits_for_all_of_a_rung_and_for_none_that_failed() -> None:
    spec = replace(SPEC, trials=6, stopping=Stopping.HALVING)
    state = begun(spec, 6)
    for number in range(5):
        told(state, number, 0, number / 10)
        assert not passes(state, state.trials[number], 0)
        state.apply(Event(what=What.PAUSED, at=0, trial=number, rung=0))
    assert next_move(state, Spent()) == Wait()
    state.apply(Event(what=What.FAILED, at=0, trial=5, reason="raises", final=True))
    assert next_move(state, Spent()) == Take(4, 1)


def test_nan_is_the_worst_and_of_equal_ones_the_earlier_is_better() -> None:
    for mode in Mode:
        state = begun(replace(SPEC, mode=mode), 4)
        for number, value in enumerate((None, 0.5, 0.5, None)):
            told(state, number, 0, value)
        assert [state.place(trial, 0) for trial in state.trials] == [2, 0, 1, 3]


def test_what_a_restarted_gang_tells_again_counts_once() -> None:
    state = begun(SPEC, 1)
    told(state, 0, 0, 0.5)
    told(state, 0, 0, 0.9)
    assert (state.trials[0].values, state.told(0), state.resource) == ({0: 0.5}, 1, 1.0)


def test_a_stopped_trial_that_is_better_than_those_that_ended_runs_once_more_to_its_rung() -> None:
    state = begun(replace(SPEC, trials=3), 3)
    for number, value in enumerate((0.9, 0.8, 0.7)):
        told(state, number, 0, value)
    for number in (1, 2):
        state.apply(Event(what=What.PAUSED, at=0, trial=number, rung=0))
    told(state, 0, 1, 0.6)  # it gets worse
    told(state, 0, 2, 0.5)
    state.apply(Event(what=What.ENDED, at=0, trial=0, value=0.5))
    assert next_move(state, Spent()) == Take(1, 0)
    state.apply(Event(what=What.STARTED, at=0, trial=1, job_id="j-1b", rung=0))
    assert state.trials[1].is_finishing
    assert next_move(state, Spent()) == Wait()
    state.apply(Event(what=What.ENDED, at=0, trial=1, value=0.8))
    assert next_move(state, Spent()) == Close(1)


def test_it_fails_when_half_of_five_have_and_says_with_which_params() -> None:
    def fails(trial: Any) -> bool:
        return trial.params["optimizer"] == "sgd" or trial.number % 2 == 0

    played = play(SPEC, curve, workers=1, fails=fails)
    assert played.best == -1
    assert len(played.state.trials) < SPEC.trials
    reason = played.events[-1].reason
    assert "trials failed" in reason
    assert "it raises" in reason
    assert '"optimizer"' in reason
    failed = [each for each in played.state.trials if each.phase is Phase.FAILED]
    assert all(len(each.jobs) == SPEC.retries + 1 for each in failed), "each was started again first"


def test_a_few_that_fail_are_left_out() -> None:
    played = play(SPEC, curve, workers=2, fails=lambda trial: trial.number in (1, 2))
    assert played.best >= 0
    assert played.state.failed == 2


def test_too_few_trials_for_a_place_still_end_with_one_that_trained_to_the_end() -> None:
    played = play(replace(SPEC, trials=2), curve, workers=2)
    best = played.state.trials[played.best]
    assert (best.rung, best.phase) == (SPEC.last, Phase.ENDED)


@pytest.mark.parametrize("budget", [Budget(resource=20), Budget(seconds=15)])
def test_a_budget_that_is_used_up_ends_with_the_best_so_far(budget: Budget) -> None:
    played = play(replace(SPEC, budget=budget), curve, workers=2)
    assert len(played.state.trials) < SPEC.trials
    assert played.value == max(each.value for each in played.state.trials if each.value is not None)
    assert played.state.trials[played.best].phase is Phase.ENDED


def test_a_small_space_is_tried_once_and_a_grid_whole() -> None:
    small = replace(SPEC, space={"rate": choice(0.1, 0.01, 0.001)}, trials=20)
    tried = [each.params["rate"] for each in play(small, curve, workers=2).state.trials]
    assert sorted(tried) == [0.001, 0.01, 0.1]
    grid = replace(small, sampler=Sampler.GRID)
    played = play(grid, curve, workers=2)
    assert sorted(each.params["rate"] for each in played.state.trials) == [0.001, 0.01, 0.1]
    assert played.state.trials[played.best].params["rate"] == 0.01


def test_trials_that_were_asked_for_and_never_started_are_started() -> None:
    state = SearchState(SPEC)
    state.apply(Event(what=What.ASKED, at=0, trial=0, params={"rate": 0.01}))
    assert next_move(state, Spent()) == Take(0, 0)


def test_a_trial_that_was_stopped_between_two_rungs_goes_on() -> None:
    state = begun(SPEC, 1)
    state.apply(Event(what=What.PAUSED, at=0, trial=0))
    assert next_move(state, Spent()) == Take(0, 0)
    assert state.trials[0].failures == 0


def test_events_that_cannot_be_are_refused() -> None:
    state = SearchState(SPEC)
    with pytest.raises(SpecError, match="the next one is 0"):
        state.apply(Event(what=What.ASKED, at=0, trial=1))
    with pytest.raises(SpecError, match="no trial 3"):
        told(state, 3, 0, 0.5)


def test_places_are_busy_while_trials_want_them() -> None:
    """Asynchronous halving leaves no worker idle but at the end; the more of them, the faster."""

    def seconds(workers: int) -> Played:
        return play(replace(SPEC, trials=729), curve, workers=workers, costs=Costs(start=0.1))

    one, many = seconds(1), seconds(16)
    assert one.seconds / many.seconds >= 0.9 * 16
    assert many.busy >= 0.9 * 16 * many.seconds
