"""Idle cards are added up as the definition says, and an ideal queue is played by hand-made figures."""

from __future__ import annotations

import pytest
from benchmarks.idle_cards import Demand, Run, idle, played


def demand(cards: int, arrived: float, *, start: float = 0.0, run: float = 10.0, end: float = 0.0) -> Demand:
    return Demand(cards=cards, arrived=arrived, start_seconds=start, run_seconds=run, end_seconds=end)


def run(cards: int, arrived: float, began: float, ended: float) -> Run:
    return Run(cards=cards, arrived=arrived, began=began, ended=ended)


def begins(demands: list[Demand], *, quota: int = 16, passing: bool = False) -> dict[int, float]:
    """When each begins, by its cards."""
    return {each.cards: each.began for each in played(demands, quota=quota, passing=passing)}


def test_cards_are_idle_only_while_a_gang_waits() -> None:
    found = idle([run(12, 0, 0, 10), run(8, 4, 12, 20)], quota=16)
    # From 4 to 10 4 of 16 are idle, in which 8 do not fit, and from 10 to 12 all 16: while 8 start, or before.
    assert found.share == pytest.approx((6 * 4 + 2 * 16) / (8 * 16))
    assert found.fitting == pytest.approx(2 * 16 / (8 * 16))
    assert found.wait_seconds == pytest.approx((0 + 8) / 2)


def test_any_gang_that_waits_and_fits_counts_not_only_the_first() -> None:
    found = idle([run(12, 0, 0, 10), run(16, 1, 10, 20), run(4, 6, 20, 21)], quota=16)
    # 12 run until 10, 16 until 20: 4 cards are idle from 1 on, and from 6 on the gang of 4 would fit in them.
    assert found.share == pytest.approx((9 * 4) / (19 * 16))
    assert found.fitting == pytest.approx((4 * 4) / (19 * 16))


def test_where_none_waits_none_is_idle() -> None:
    found = idle([run(4, 0, 0, 10), run(4, 20, 20, 30)], quota=16)
    assert (found.share, found.fitting, found.wait_seconds) == (0, 0, 0)


def test_start_and_end_hold_the_room_of_a_gang() -> None:
    assert played([demand(16, 1, start=2, end=3), demand(8, 2, start=1)], quota=16, passing=False) == [
        run(16, 1, 3, 13),
        run(8, 2, 17, 27),
    ]


def test_in_strict_order_each_waits_behind_all_before_it() -> None:
    demands = [demand(12, 0), demand(16, 1), demand(4, 2)]
    assert begins(demands) == {12: 0, 16: 10, 4: 20}
    assert begins(demands, passing=True) == {12: 0, 4: 2, 16: 12}


def test_who_came_first_is_let_in_first_where_both_fit() -> None:
    demands = [demand(16, 0), demand(10, 2), demand(8, 1)]
    assert begins(demands, passing=True) == {16: 0, 8: 10, 10: 20}


def test_several_are_let_in_by_one_release() -> None:
    demands = [demand(16, 0), demand(6, 1), demand(10, 2)]
    assert begins(demands) == {16: 0, 6: 10, 10: 10}


def test_equal_gangs_are_each_played_once() -> None:
    assert len(played([demand(16, 0)] * 3, quota=16, passing=True)) == 3


def test_a_gang_that_never_fits_is_refused() -> None:
    with pytest.raises(ValueError, match="a gang has 17 cards, the quota is 16"):
        played([demand(17, 0)], quota=16, passing=True)
