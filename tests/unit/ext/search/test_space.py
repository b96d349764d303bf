"""The space of a search: what authors may write, and which points there are."""

from __future__ import annotations

from typing import Any

import pytest

from muster.core.errors import SpecError
from muster.core.wire import dumps, loads
from muster.ext.search.space import (
    Dimension,
    check_space,
    choice,
    grid,
    grid_size,
    in_order,
    integers,
    loguniform,
    uniform,
)
from muster.ext.search.spec import Sampler, SearchSpec

MANY = {
    "rate": loguniform(1e-4, 1e-1),
    "layers": integers(1, 4),
    "width": integers(16, 1024, log=True),
    "dropout": uniform(0, 0.5, step=0.1),
    "optimizer": choice("adam", "sgd", None, [1, 2]),
    "momentum": uniform(0, 1).when(optimizer="sgd"),
}


def test_a_spec_is_the_same_after_it_was_sent() -> None:
    spec = SearchSpec(space=MANY, metric="auc", rungs=(1, 3, 9))
    assert loads(SearchSpec, dumps(spec)) == spec


def test_a_grid_has_every_point_and_no_param_that_is_not_asked() -> None:
    space = {
        "momentum": uniform(0, 1, step=0.5).when(optimizer="sgd"),
        "optimizer": choice("adam", "sgd"),
        "nesterov": choice(True, False).when(momentum=(0.5, 1.0)),
    }
    assert in_order(space) == ["optimizer", "momentum", "nesterov"]
    assert grid(space) == [
        {"optimizer": "adam"},
        {"optimizer": "sgd", "momentum": 0.0},
        {"optimizer": "sgd", "momentum": 0.5, "nesterov": True},
        {"optimizer": "sgd", "momentum": 0.5, "nesterov": False},
        {"optimizer": "sgd", "momentum": 1.0, "nesterov": True},
        {"optimizer": "sgd", "momentum": 1.0, "nesterov": False},
    ]


def test_values_of_steps() -> None:
    assert uniform(0, 0.3, step=0.1).values() == pytest.approx((0, 0.1, 0.2, 0.3))
    assert integers(2, 9, step=3).values() == (2, 5, 8)
    assert all(type(value) is int for value in integers(2, 9).values())


def test_true_is_not_one_and_no_choice_is_there_twice_under_two_types() -> None:
    both = choice(1, True, [0], [False])
    assert [both.index(each) for each in (1, True, [0], [False], 0)] == [0, 1, 2, 3, None]
    assert not choice(1, 2).when(flag=True).asked({"flag": 1})
    assert choice(1, 2).when(width=64.0).asked({"width": 64})
    with pytest.raises(SpecError, match=r"1\.0 is there twice"):
        choice(1, 1.0)


def test_what_a_dimension_holds() -> None:
    assert [integers(1, 9, step=4).holds(each) for each in (1, 5, 5.0, 4, 13, True, "5")] == [
        True, True, True, False, False, False, False,
    ]  # fmt: skip
    assert [uniform(0, 0.3, step=0.1).holds(each) for each in (0.1 + 0.2 - 0.0, 0.15)] == [False, False]
    assert uniform(0, 0.3, step=0.1).holds(0.2)
    assert [loguniform(0.01, 1).holds(each) for each in (0.5, 0.001, float("nan"))] == [True, False, False]


def test_a_grid_is_counted_as_it_is_listed() -> None:
    flat = {"a": integers(1, 7, step=2), "b": choice("x", "y"), "c": uniform(0, 1, step=0.25)}
    nested = flat | {"d": choice(1, 2, 3).when(b="x")}
    for space in (flat, nested):
        assert grid_size(space) == len(grid(space))
    assert SearchSpec(space=nested, metric="auc", sampler=Sampler.GRID, trials=1000).points == 80
    assert SearchSpec(space=nested, metric="auc", sampler=Sampler.GRID, trials=7).points == 7


@pytest.mark.parametrize(
    ("space", "said"),
    [
        ({}, "the space is empty"),
        ({"rate": choice(0.1)}, "one point"),
        ({"rate": uniform(1, 1), "width": choice(64)}, "one point"),
        ({"1st": choice(1, 2)}, "1st"),
        ({"rate": [0.1, 0.2]}, r"param 'rate': \[0.1, 0.2\] is no dimension"),
        (
            {"a": choice(1, 2).when(optimiser="sgd"), "optimizer": choice("sgd", "adam")},
            "did you mean optimizer",
        ),
        ({"a": choice(1, 2).when(b="x"), "b": choice("y", "z")}, "depends on b being 'x'"),
        ({"a": choice(1, 2).when(b=9), "b": integers(1, 4)}, "depends on b being 9"),
        (
            {"a": choice(1, 2).when(b=1), "b": choice(1, 2).when(a=1)},
            "params a, b depend on each other in a circle",
        ),
    ],
)
def test_a_space_without_sense_is_refused(space: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        check_space(space)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: choice(), "needs a value"),
        (lambda: choice(1, 1), "twice"),
        (lambda: choice({1}), "need a JSON value"),
        (lambda: choice(float("nan"), 1), "need a JSON value"),
        (lambda: uniform(2, 1), "the first number must be the lower"),
        (lambda: uniform(0, float("inf")), "high is inf"),
        (lambda: loguniform(0, 1), "above 0"),
        (lambda: integers(1, 2.5), "whole number"),  # type: ignore[arg-type]
        (lambda: integers(1, 8, step=0), "step is 0"),
        (lambda: Dimension(low=1, high=2, choices=(1,)), "not both"),
        (lambda: uniform(0, True), "high is True"),
        (lambda: grid({"rate": uniform(0, 1)}), "give it a step"),
        (lambda: grid({"a": integers(1, 1000), "b": integers(1, 1001)}), "more than 1,000,000"),
    ],
)
def test_a_dimension_without_sense_is_refused(make: Any, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        make()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"rungs": ()}, "one or more"),
        ({"rungs": (3, 1)}, "above the one before"),
        ({"rungs": (0, 1)}, "above 0"),
        ({"rungs": (1, float("nan"))}, "a rung is nan"),
        ({"trials": 0}, "trials is 0"),
        ({"at_once": 0}, "at_once is 0"),
        ({"metric": "the auc"}, "the auc"),
        ({"until": "rate"}, "which the space has too"),
        ({"sampler": "grid"}, "grid"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_a_search_without_sense_is_refused(fields: dict[str, Any], said: str) -> None:
    if "sampler" in fields:
        fields = {"sampler": Sampler.GRID}
    with pytest.raises(SpecError, match=said):
        SearchSpec(**{"space": {"rate": uniform(0, 1)}, "metric": "auc", **fields})
