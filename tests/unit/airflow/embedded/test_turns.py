"""Which of the tasks that are ready may start: Airflow's limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from muster.airflow.embedded.execution import UNLIMITED, RunLimits, Turn, whose_turn


def names(
    ready: Sequence[Turn], running: Sequence[Turn] = (), *, tasks: int = 16, pools: Mapping[str, int] = {}
) -> list[str]:
    chosen = whose_turn(ready, running, RunLimits(tasks=tasks, pools=pools))
    return [f"{turn.task_id}{'' if turn.map_index < 0 else turn.map_index}" for turn in chosen]


A, B, C = (Turn(task_id=name, place=place) for place, name in enumerate("abc"))
FITS = [Turn(task_id="fit", map_index=index, at_once=2) for index in range(4)]


def test_what_is_ready_starts_in_the_order_of_the_dag() -> None:
    assert names([C, A, B]) == ["a", "b", "c"]
    assert names(reversed(FITS[:2])) == ["fit0", "fit1"]  # type: ignore[arg-type]


def test_the_greater_priority_goes_first() -> None:
    assert names([A, B, Turn(task_id="late", place=9, weight=5)], tasks=2) == ["late", "a"]


def test_no_more_run_than_the_dag_allows() -> None:
    assert names([B, C], [A], tasks=2) == ["b"]
    assert names([B, C], [A], tasks=1) == []


def test_no_more_instances_of_a_task_run_than_it_allows_and_it_holds_no_other_back() -> None:
    assert names([*FITS[1:], C], [FITS[0]]) == ["fit1", "c"]


@pytest.mark.parametrize(
    ("slots", "started"), [(1, ["a"]), (2, ["a", "b"]), (UNLIMITED, ["a", "b", "c"]), (0, ["a"])]
)
def test_a_pool_has_slots(slots: int, started: list[str]) -> None:
    pooled = [Turn(task_id=name, place=place, pool="db") for place, name in enumerate("abc")]
    assert names(pooled, pools={"db": slots}) == started
    assert names([A], pooled, pools={"db": slots}) == ["a"]


def test_a_task_that_asks_for_more_than_its_pool_has_runs_alone_in_it() -> None:
    wide = Turn(task_id="wide", pool="db", slots=9)
    small = Turn(task_id="small", pool="db", weight=0)
    assert names([wide, small], pools={"db": 2}) == ["wide"]
    assert names([wide], [small], pools={"db": 2}) == []
