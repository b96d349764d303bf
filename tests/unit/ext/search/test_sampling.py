"""What is tried next: it follows from the spec and what was told, and from nothing else."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from muster.ext.search.sampling import Sampling
from muster.ext.search.simulation import play
from muster.ext.search.space import choice, loguniform, uniform
from muster.ext.search.spec import Event, EventKind, Mode, Sampler, SearchSpec, Stopping
from muster.ext.search.state import SearchState

SPACE = {
    "rate": loguniform(1e-5, 1),
    "optimizer": choice("adam", "sgd"),
    "momentum": uniform(0, 1).when(optimizer="sgd"),
}
SPEC = SearchSpec(space=SPACE, metric="auc", trials=500, rungs=(1, 3), sampler=Sampler.TPE)


def curve(params: Mapping[str, Any], epoch: float) -> float:
    return -abs(math.log10(params["rate"]) + 2) * epoch


def tried(count: int, told: Any, spec: SearchSpec = SPEC) -> SearchState:
    """A search whose trials have told `told` of their rate at the first rung, or nothing where that is missing."""
    state = SearchState(spec)
    for number in range(count):
        rate = 10 ** (-5 + 5 * number / count)
        params = {"rate": rate, "optimizer": "adam"}
        for event in (
            Event(what=EventKind.ASKED, at=0, trial=number, params=params),
            Event(what=EventKind.STARTED, at=0, trial=number, job_id="j", rung=0),
            *told(number, rate),
        ):
            state.apply(event)
    return state


def value(number: int, told: float | None) -> list[Event]:
    return [Event(what=EventKind.REACHED, at=0, trial=number, rung=0, value=told)]


def rates(state: SearchState, spec: SearchSpec = SPEC, **more: Any) -> list[float]:
    """The logarithms of the rates that other seeds would try next."""
    return [
        math.log10((Sampling(replace(spec, seed=seed), **more).ask(state) or {})["rate"])
        for seed in range(15)
    ]


@pytest.mark.parametrize("mode", Mode)
def test_tpe_looks_where_it_was_good(mode: Mode) -> None:
    spec = replace(SPEC, mode=mode)
    sign = 1 if mode is Mode.MAX else -1
    state = tried(40, lambda number, rate: value(number, sign * curve({"rate": rate}, 1)), spec)
    assert abs(statistics.median(rates(state, spec)) + 2) < 0.7
    assert abs(statistics.median(rates(tried(0, None), spec)) + 2) > 0.4, "it knows nothing yet"


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("how", ["nan", "nan later", "failed"])
def test_tpe_keeps_away_from_nan_and_from_what_fails(how: str, mode: Mode) -> None:
    def told(number: int, rate: float) -> list[Event]:
        if rate < 1e-2:
            return value(number, 0.5)
        if how == "failed":
            return [Event(what=EventKind.FAILED, at=0, trial=number, reason="raises", final=True)]
        later = [Event(what=EventKind.REACHED, at=0, trial=number, rung=1)] if how == "nan later" else []
        return [*value(number, 0.6 if later else None), *later]

    spec = replace(SPEC, mode=mode)
    assert sum(rate > -2 for rate in rates(tried(40, told, spec), spec)) <= 3, "two fifths of the space fail"


def test_tpe_keeps_away_from_those_that_run() -> None:
    def near(state: SearchState) -> float:
        return statistics.median(abs(rate + 2) for rate in rates(state))

    state = tried(40, lambda number, rate: value(number, curve({"rate": rate}, 1)))
    alone = near(state)
    for number in range(40, 80):
        params = {"rate": 10 ** (-2 + (number - 60) / 200), "optimizer": "adam"}
        state.apply(Event(what=EventKind.ASKED, at=0, trial=number, params=params))
    assert near(state) > 2 * alone, "forty run at the best point"


def test_tpe_prefers_who_came_further() -> None:
    def told(number: int, rate: float) -> list[Event]:
        further = (
            [Event(what=EventKind.REACHED, at=0, trial=number, rung=1, value=0.1)] if rate < 1e-4 else []
        )
        return [*value(number, 0.5), *further]

    assert statistics.median(rates(tried(40, told))) < -3.5


def test_earlier_trials_are_known_and_those_of_another_space_left_out() -> None:
    earlier = [
        ({"rate": 10 ** (-5 + n / 8), "optimizer": "adam"}, curve({"rate": 10 ** (-5 + n / 8)}, 9))
        for n in range(40)
    ]
    strange = [
        ({"rate": 5.0, "optimizer": "adam"}, 1.0),
        ({"rate": 0.1, "optimizer": "lion"}, 1.0),
        ({"rate": 0.1}, 1.0),
        ({"rate": 0.1, "optimizer": "adam", "momentum": 0.5}, 1.0),
        ({"rate": 0.1, "optimizer": "sgd"}, 1.0),
    ]
    assert Sampling(SPEC, earlier=[*earlier, *strange]).left_out == 5
    assert Sampling(SPEC, earlier=[({"rate": 0.1, "optimizer": "sgd", "momentum": 0.5}, None)]).left_out == 0
    assert abs(statistics.median(rates(SearchState(SPEC), earlier=[*earlier, *strange])) + 2) < 0.7


def test_choices_of_any_json_value_come_back_as_they_are() -> None:
    values = (1, True, None, "a", [1, 2], {"a": 1})
    spec = replace(SPEC, space={"one": choice(*values), "rate": uniform(0, 1)}, trials=40)
    played = play(spec, lambda params, epoch: params["rate"], workers=2)
    found = [each.params["one"] for each in played.state.trials]
    assert all(
        any(each is value or (each == value and type(each) is type(value)) for value in values)
        for each in found
    )
    assert len({str(each) for each in found}) >= 4


def test_tpe_tries_every_point_of_a_small_space_once() -> None:
    spec = replace(SPEC, space={"n": choice(*range(12))}, trials=50, stopping=Stopping.NONE)
    played = play(spec, lambda params, epoch: params["n"], workers=1)
    assert sorted(each.params["n"] for each in played.state.trials) == list(range(12))


def test_a_grid_is_in_another_order_with_another_seed() -> None:
    orders = [
        [each.params["n"] for each in play(spec, lambda params, epoch: params["n"], workers=1).state.trials]
        for seed in (1, 1, 2)
        for spec in [replace(SPEC, space={"n": choice(*range(12))}, sampler=Sampler.GRID, seed=seed)]
    ]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == list(range(12)) == sorted(orders[2])
