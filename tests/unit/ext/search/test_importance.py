"""How much each param matters: against scipy-free reckonings by hand, and on what makes it hard."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.searched import SPEC, of

from muster.ext.search.importance import FEWEST, by_chance, effect, importance
from muster.ext.search.space import choice, uniform
from muster.ext.search.state import Trial

SPACE = {"x": uniform(0, 1), "y": uniform(0, 1), "z": uniform(0, 1).when(kind="a"), "kind": choice("a", "b")}


def trials(count: int, value: Any) -> list[Trial]:
    """Trials of random points; `value` makes the value at the first rung of a point's params."""
    draw, found = random.Random(1), []
    for number in range(count):
        params = {"x": draw.random(), "y": draw.random(), "kind": draw.choice("ab")}
        if params["kind"] == "a":
            params["z"] = draw.random()
        found.append(Trial(number, params, values={0: value(params)}))
    return found


def test_the_formula_is_the_one_of_the_source() -> None:
    """Ranks 1 to 4 and 5 to 8 in two groups: H is 5.333, so eta squared is (H - 2 + 1) / (8 - 2)."""
    assert effect([1, 2, 3, 4, 5, 6, 7, 8], "aaaabbbb") == pytest.approx((16 / 3 - 1) / 6)
    assert effect([1, 1, 1, 1, 2, 2, 2, 2], "aaaabbbb") == pytest.approx(
        1.0
    )  # H is 7 with the ties corrected
    assert effect([1, 5, 2, 6, 3, 7, 4, 8], "aabbaabb") == 0.0


@pytest.mark.parametrize(
    ("values", "groups"),
    [([1.0] * (FEWEST - 1), "aaabbbb"), ([1.0, 2.0] * 5, "a" * 10), (range(10), range(10)), ([], "")],
)
def test_where_nothing_can_be_said_it_is_none(values: Any, groups: Any) -> None:
    assert effect(list(values), list(groups)) is None


def test_values_that_are_all_equal_are_explained_by_nothing() -> None:
    assert effect([float("inf")] * 8, "aaaabbbb") == 0.0


@pytest.mark.parametrize("count", [60, 1000])
def test_the_param_that_decides_comes_first(count: int) -> None:
    found = importance(of(space=SPACE), trials(count, lambda params: -abs(params["x"] - 0.6)))
    assert found[0].param == "x"
    assert (found[0].share or 0) > 0.4
    assert all((each.share or 0) < 0.15 for each in found[1:])
    assert {each.param: each.trials for each in found}["z"] < count


def test_a_param_that_ends_in_nan_matters_and_one_value_far_out_does_not() -> None:
    nan = importance(
        of(space=SPACE), trials(60, lambda params: None if params["kind"] == "b" else params["y"])
    )
    assert {each.param: each.share or 0 for each in nan}["kind"] > 0.5
    draw = random.Random(2)
    noise = trials(60, lambda _: draw.random())
    noise[7].values[0] = -1e300
    assert all((each.share or 0) < 0.2 for each in importance(of(space=SPACE), noise))


@pytest.mark.parametrize(("groups", "percentile"), [(2, 3.841), (3, 5.991), (10, 16.919)])
def test_what_chance_explains_is_the_percentile_of_chi_squared(groups: int, percentile: float) -> None:
    exact = (percentile - groups + 1) / (100 - groups)
    assert by_chance(100, groups) == pytest.approx(exact, rel=0.05)


def test_of_few_trials_most_params_that_do_nothing_are_known_for_it() -> None:
    space = {f"p{n}": uniform(0, 1) for n in range(200)}
    draw = random.Random(3)
    noise = [Trial(n, {name: draw.random() for name in space}, values={0: draw.random()}) for n in range(30)]
    assert sum(each.matters for each in importance(of(space=space), noise)) < 20  # 10 are to be expected
    decided = [Trial(n, {**each.params}, values={0: each.params["p0"]}) for n, each in enumerate(noise)]
    assert importance(of(space=space), decided)[0].matters


def test_only_what_reached_the_first_rung_is_compared() -> None:
    silent = [Trial(number, {"rate": 0.01, "optimizer": "adam"}) for number in range(20)]
    assert [(each.share, each.matters, each.trials) for each in importance(SPEC, silent)] == [
        (None, False, 0)
    ] * 3
