"""A search that is played without jobs: which trials go on, what is the best, and that no restart changes it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from muster.core.errors import SpecError
from muster.core.wire import dumps, loads
from muster.ext.search.rules import Ask, Close, NothingYet, Spent, Take, next_move, passes
from muster.ext.search.sampling import Sampling
from muster.ext.search.simulation import Costs, Played, SearchPlay, play
from muster.ext.search.space import choice, integers, loguniform, uniform
from muster.ext.search.spec import Budget, Event, EventKind, Mode, Sampler, SearchSpec, Stopping
from muster.ext.search.state import Phase, SearchState, Trial

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
    state.apply(Event(what=EventKind.REACHED, at=0, trial=number, rung=rung, value=value))


def begun(spec: SearchSpec, count: int) -> SearchState:
    """A search with trials that all run."""
    state = SearchState(spec)
    for number in range(count):
        state.apply(Event(what=EventKind.ASKED, at=0, trial=number, params={"rate": 0.01}))
        state.apply(Event(what=EventKind.STARTED, at=0, trial=number, job_id=f"j-{number}", rung=0))
    return state


class FaultyPlay(SearchPlay):
    """A play in which jobs fail, are preempted, and whose driver is killed.

    :param fails: whether the job that a trial has just been given fails at once.
    :param preempts: whether a stretch from one rung to the next, which a trial begins, is stopped halfway for a job of higher
        priority. The half is lost, the place is free for other trials at once, and the trial goes on from its last rung.
    :param restart: asked after each event, by its number: whether state and sampling are built anew from the events, as by a
        process that begins where another was killed.
    """

    def __init__(
        self,
        spec: SearchSpec,
        *,
        workers: int,
        fails: Callable[[Trial], bool] = lambda _: False,
        preempts: Callable[[Trial], bool] = lambda _: False,
        restart: Callable[[int], bool] = lambda _: False,
    ) -> None:
        super().__init__(spec, curve, workers, Costs(), Sampling)
        self._fails, self._preempts, self._restart = fails, preempts, restart

    def begin(self, number: int, rung: int) -> None:
        if self._fails(self.state.trials[number]):
            self.later(self.costs.start, lambda: self._fail(number))
        else:
            super().begin(number, rung)

    def train(self, number: int, rung: int, *, before: float = 0.0) -> None:
        trial = self.state.trials[number]
        if not self._preempts(trial):
            super().train(number, rung, before=before)
            return
        units = self.spec.rungs[rung] - (self.spec.rungs[trial.rung] if trial.values else 0.0)
        self.later(before + units / 2 * self.costs.unit(trial.params), lambda: self._preempt(number))

    def tell(self, what: EventKind, trial: int, **fields: Any) -> None:
        super().tell(what, trial, **fields)
        if self._restart(len(self.events)):
            self.state, self.chosen = SearchState(self.spec, self.events), self.sampling(self.spec)

    def _preempt(self, number: int) -> None:
        self.tell(EventKind.PAUSED, number)
        self.leave()

    def _fail(self, number: int) -> None:
        final = self.state.trials[number].failures >= self.spec.retries
        self.tell(EventKind.FAILED, number, reason="it raises", final=final)
        self.leave()


@pytest.mark.parametrize("stopping", Stopping)
@pytest.mark.parametrize("sampler", [Sampler.RANDOM, Sampler.TPE])
def test_it_finds_what_is_best_and_no_restart_of_its_driver_changes_anything(
    stopping: Stopping, sampler: Sampler
) -> None:
    spec = replace(SPEC, stopping=stopping, sampler=sampler)
    whole = play(spec, curve, workers=3)
    assert whole.value == max(each.value for each in whole.state.trials if each.value is not None)
    assert whole.events == FaultyPlay(spec, workers=3, restart=lambda _: True).run().events
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
        state.apply(Event(what=EventKind.PAUSED, at=0, trial=number, rung=0))
    told(state, 2, 0, 0.1)
    assert not passes(state, state.trials[2], 0)
    state.apply(Event(what=EventKind.PAUSED, at=0, trial=2, rung=0))
    assert next_move(state, Spent()) == Take(1, 1), "of three the best goes on"
    state.apply(Event(what=EventKind.STARTED, at=0, trial=1, job_id="j-1b", rung=1))
    assert next_move(state, Spent()) == Ask()
    for number in (3, 4):
        told(state, number, 0, 0.2)
        state.apply(Event(what=EventKind.PAUSED, at=0, trial=number, rung=0))
    told(state, 5, 0, 0.9)
    assert passes(state, state.trials[5], 0), "it is among the best two of six at once"


def test_halving_waits_for_all_of_a_rung_and_for_none_that_failed() -> None:
    spec = replace(SPEC, trials=6, stopping=Stopping.HALVING)
    state = begun(spec, 6)
    for number in range(5):
        told(state, number, 0, number / 10)
        assert not passes(state, state.trials[number], 0)
        state.apply(Event(what=EventKind.PAUSED, at=0, trial=number, rung=0))
    assert next_move(state, Spent()) == NothingYet()
    state.apply(Event(what=EventKind.FAILED, at=0, trial=5, reason="raises", final=True))
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
        state.apply(Event(what=EventKind.PAUSED, at=0, trial=number, rung=0))
    told(state, 0, 1, 0.6)  # it gets worse
    told(state, 0, 2, 0.5)
    state.apply(Event(what=EventKind.ENDED, at=0, trial=0, value=0.5))
    assert next_move(state, Spent()) == Take(1, 0)
    state.apply(Event(what=EventKind.STARTED, at=0, trial=1, job_id="j-1b", rung=0))
    assert state.trials[1].is_finishing
    assert next_move(state, Spent()) == NothingYet()
    state.apply(Event(what=EventKind.ENDED, at=0, trial=1, value=0.8))
    assert next_move(state, Spent()) == Close(1)


def test_it_fails_when_half_of_five_have_and_says_with_which_params() -> None:
    def fails(trial: Any) -> bool:
        return trial.params["optimizer"] == "sgd" or trial.number % 2 == 0

    played = FaultyPlay(SPEC, workers=1, fails=fails).run()
    assert played.best == -1
    assert len(played.state.trials) < SPEC.trials
    reason = played.events[-1].reason
    assert "trials failed" in reason
    assert "it raises" in reason
    assert '"optimizer"' in reason
    failed = [each for each in played.state.trials if each.phase is Phase.FAILED]
    assert all(len(each.jobs) == SPEC.retries + 1 for each in failed), "each was started again first"


def test_a_few_that_fail_are_left_out() -> None:
    played = FaultyPlay(SPEC, workers=2, fails=lambda trial: trial.number in (1, 2)).run()
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
    state.apply(Event(what=EventKind.ASKED, at=0, trial=0, params={"rate": 0.01}))
    assert next_move(state, Spent()) == Take(0, 0)


def test_a_trial_that_was_stopped_between_two_rungs_goes_on() -> None:
    state = begun(SPEC, 1)
    state.apply(Event(what=EventKind.PAUSED, at=0, trial=0))
    assert next_move(state, Spent()) == Take(0, 0)
    assert state.trials[0].failures == 0


def test_events_that_cannot_be_are_refused() -> None:
    state = SearchState(SPEC)
    with pytest.raises(SpecError, match="the next one is 0"):
        state.apply(Event(what=EventKind.ASKED, at=0, trial=1))
    with pytest.raises(SpecError, match="no trial 3"):
        told(state, 3, 0, 0.5)


def test_places_are_busy_while_trials_want_them() -> None:
    """Asynchronous halving leaves no worker idle but at the end; the more of them, the faster."""

    def seconds(workers: int) -> Played:
        return play(replace(SPEC, trials=729), curve, workers=workers, costs=Costs(start=0.1))

    one, many = seconds(1), seconds(16)
    assert one.seconds / many.seconds >= 0.9 * 16
    assert many.busy >= 0.9 * 16 * many.seconds


def apply(state: SearchState, what: EventKind, number: int, **fields: Any) -> None:
    state.apply(Event(what=what, at=0, trial=number, **fields))


def test_a_trial_that_trained_on_while_it_was_stopped_is_paused_where_it_is() -> None:
    """Its line comes before its job's end or after it; the trial is neither lost nor taken up without a place."""
    for late in (False, True):
        state = begun(replace(SPEC, trials=3), 3)
        told(state, 0, 0, 0.1)
        if late:
            apply(state, EventKind.PAUSED, 0, rung=0)
        told(state, 0, 1, 0.2)
        if not late:
            apply(state, EventKind.PAUSED, 0, rung=0)
        assert state.trials[0].phase is Phase.PAUSED
        assert state.best_paused(0) is None
        assert state.best_paused(1) is state.trials[0]
        assert next_move(state, Spent()) == NothingYet()


def test_a_last_run_that_tells_nothing_keeps_the_value_that_it_is_chosen_by() -> None:
    state = begun(replace(SPEC, trials=2), 2)
    told(state, 0, 0, 0.9)
    apply(state, EventKind.PAUSED, 0, rung=0)
    for rung in range(3):
        told(state, 1, rung, 0.5)
    apply(state, EventKind.ENDED, 1, value=0.5)
    assert next_move(state, Spent()) == Take(0, 0)
    apply(state, EventKind.STARTED, 0, job_id="again", rung=0)
    apply(state, EventKind.ENDED, 0)
    assert next_move(state, Spent()) == Close(0)
    assert not state.trials[0].ended_early


def test_a_last_run_that_fails_is_started_again_although_the_budget_is_used_up() -> None:
    state = begun(replace(SPEC, trials=2, budget=Budget(resource=1)), 1)
    told(state, 0, 0, 0.9)
    apply(state, EventKind.PAUSED, 0, rung=0)
    assert next_move(state, Spent()) == Take(0, 0)
    apply(state, EventKind.STARTED, 0, job_id="again", rung=0)
    apply(state, EventKind.FAILED, 0, reason="its node is lost")
    assert next_move(state, Spent()) == Take(0, 0)


def test_a_metric_that_is_never_told_ends_the_search_and_says_which_line_is_missing() -> None:
    state = begun(SPEC, 5)
    assert next_move(state, Spent()) == Ask()
    for number in range(5):
        apply(state, EventKind.ENDED, number)
        assert (
            number == 4 or next_move(state, Spent()) == NothingYet()
        )  # one silent trial is proof: no other begins
    close = next_move(state, Spent())
    assert isinstance(close, Close)
    assert close.best == -1
    assert "5 of them ended and never told auc" in close.reason
    assert "`muster: epoch=1/9 auc=0.5`" in close.reason


def test_few_trials_that_never_told_the_metric_have_no_best() -> None:
    state = begun(replace(SPEC, trials=2), 2)
    for number in range(2):
        apply(state, EventKind.ENDED, number)
    close = next_move(state, Spent())
    assert isinstance(close, Close)
    assert close.best == -1
    assert "no trial told auc" in close.reason


@pytest.mark.parametrize("stopping", Stopping)
def test_nan_alone_has_no_best_and_trains_no_further(stopping: Stopping) -> None:
    played = play(replace(SPEC, stopping=stopping), lambda *_: None, workers=3)
    assert played.best == -1
    assert "told NaN for auc" in played.events[-1].reason
    if stopping is not Stopping.NONE:
        assert {each.rung for each in played.state.trials} == {0}


@pytest.mark.parametrize("stopping", Stopping)
def test_a_budget_stops_trials_at_their_next_rung(stopping: Stopping) -> None:
    spec = replace(SPEC, stopping=stopping, budget=Budget(resource=4))
    played = play(spec, curve, workers=2)
    assert played.state.resource < 4 + 2 * spec.rungs[-1]
    assert max(each.rung for each in played.state.trials) < spec.last or stopping is not Stopping.NONE
    used = Spent(seconds=10)
    state = begun(replace(SPEC, stopping=Stopping.NONE, budget=Budget(seconds=10)), 1)
    told(state, 0, 0, 0.5)
    assert passes(state, state.trials[0], 0)
    assert not passes(state, state.trials[0], 0, used)


def test_halving_takes_none_up_before_its_rung_is_whole_and_counts_who_left() -> None:
    spec = replace(SPEC, trials=9, stopping=Stopping.HALVING)
    state = begun(spec, 9)
    for number in (0, 1):
        apply(state, EventKind.FAILED, number, reason="raises", final=True)
    for number in range(2, 9):
        told(state, number, 0, None if number == 2 else number / 10)
        apply(state, EventKind.PAUSED, number, rung=0)
    for number in (8, 7, 6):
        assert next_move(state, Spent()) == Take(number, 1)
        apply(state, EventKind.STARTED, number, job_id="on", rung=1)
    told(state, 8, 1, 0.8)
    assert not passes(state, state.trials[8], 1), "two more are to come, though two failed earlier"
    apply(state, EventKind.PAUSED, 8, rung=1)
    told(state, 7, 1, 0.9)
    assert not passes(state, state.trials[7], 1)
    apply(state, EventKind.PAUSED, 7, rung=1)
    apply(state, EventKind.ENDED, 6, value=0.6)
    assert state.trials[6].ended_early
    assert next_move(state, Spent()) == Take(7, 2), "the third ended by itself"


def test_halving_of_a_space_with_fewer_points_than_trials_halves_those() -> None:
    spec = replace(SPEC, space={"n": choice(*range(1, 10))}, trials=20, stopping=Stopping.HALVING)
    played = play(spec, lambda params, epoch: params["n"] * epoch, workers=2)
    rungs = {each.params["n"]: each.rung for each in played.state.trials}
    assert rungs == {1: 0, 2: 0, 3: 0, 4: 0, 5: 0, 6: 0, 7: 1, 8: 1, 9: 2}


def test_a_third_of_three_is_one_whatever_the_rungs_are() -> None:
    state = begun(replace(SPEC, rungs=(0.7, 2.1)), 3)
    assert 2.1 / 0.7 > 3
    for number in range(3):
        told(state, number, 0, number / 10)
    assert passes(state, state.trials[2], 0)


@pytest.mark.parametrize("stopping", Stopping)
def test_preempted_trials_go_on_from_their_checkpoint_and_change_no_result(stopping: Stopping) -> None:
    spec = replace(SPEC, stopping=stopping)
    counted: dict[int, int] = {}

    def preempts(trial: Trial) -> bool:
        counted[trial.number] = counted.get(trial.number, 0) + 1
        return counted[trial.number] % 3 == 1

    calm, played = play(spec, curve, workers=4), FaultyPlay(spec, workers=4, preempts=preempts).run()
    assert played.value == calm.value
    assert played.seconds > calm.seconds
    assert not played.state.failed
    assert all(each.phase in (Phase.PAUSED, Phase.ENDED) for each in played.state.trials)


@pytest.mark.parametrize("stopping", Stopping)
@pytest.mark.parametrize("sampler", [Sampler.RANDOM, Sampler.TPE])
def test_a_driver_that_is_killed_after_any_event_goes_on_as_one_that_is_not(
    stopping: Stopping, sampler: Sampler
) -> None:
    """Each run is killed once, at another event, with failures and preemptions about."""
    spec = replace(SPEC, trials=12, stopping=stopping, sampler=sampler)

    def run(at: int) -> Played:
        return FaultyPlay(
            spec,
            workers=3,
            fails=lambda trial: trial.number % 5 == 1 and len(trial.jobs) == 1,
            preempts=lambda trial: trial.number % 4 == 2 and len(trial.jobs) == 1,
            restart=lambda number: number == at,
        ).run()

    whole = run(-1)
    assert {EventKind.FAILED, EventKind.PAUSED, EventKind.ENDED} <= {event.what for event in whole.events}
    for at in range(1, len(whole.events) + 1, 3 if sampler is Sampler.TPE else 1):
        assert run(at).events == whole.events


def test_a_grid_of_many_points_costs_no_more_a_decision() -> None:
    spec = replace(SPEC, space={"n": integers(1, 500_000)}, sampler=Sampler.GRID, trials=100_000)
    state = begun(spec, 1)
    began = time.process_time()
    for _ in range(1000):
        next_move(state, Spent())
    assert time.process_time() - began < 0.5, "a grid that is made anew each time takes 100 s"


def test_none_goes_on_when_the_search_has_failed() -> None:
    state = begun(replace(SPEC, stopping=Stopping.NONE), 6)
    for number in (0, 1, 2):
        told(state, 3, 0, 0.5)
        assert passes(state, state.trials[3], 0)
        apply(state, EventKind.FAILED, number, reason="raises", final=True)
    told(state, 4, 0, 0.5)
    assert not passes(state, state.trials[4], 0)
    assert next_move(state, Spent()) == NothingYet(), "three still run"


def test_halving_waits_for_none_that_told_nan() -> None:
    spec = replace(SPEC, trials=9, stopping=Stopping.HALVING)
    state = begun(spec, 9)
    for number in range(9):
        told(state, number, 0, number / 10 if number < 2 else None)
        apply(state, EventKind.PAUSED, number, rung=0)
    for number in (1, 0):
        assert next_move(state, Spent()) == Take(number, 1)
        apply(state, EventKind.STARTED, number, job_id="on", rung=1)
        told(state, number, 1, 0.5)
        apply(state, EventKind.PAUSED, number, rung=1)
    assert next_move(state, Spent()) == Take(0, 2), "three have a place, and two came"


def test_of_two_that_have_a_place_the_one_that_is_further_goes_on_first() -> None:
    state = begun(replace(SPEC, trials=9), 9)
    for number in range(9):
        told(state, number, 0, number / 10)
        apply(state, EventKind.PAUSED, number, rung=0)
    for number in (8, 7):
        apply(state, EventKind.STARTED, number, job_id="on", rung=1)
    told(state, 5, 1, 0.1)
    told(state, 8, 1, 0.8)
    told(state, 7, 1, 0.7)
    for number in (8, 7):
        apply(state, EventKind.PAUSED, number, rung=1)
    assert state.best_paused(0) is state.trials[6]
    assert next_move(state, Spent()) == Take(8, 2)
