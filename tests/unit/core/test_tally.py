from __future__ import annotations

import random

from muster.core.tally import MOST_TIMES, Allotment, Tally


def seconds(tally: Tally, now: float) -> float:
    return sum(each.replica_seconds(now=now) for each in tally.times)


def test_one_time_ends_where_the_next_begins() -> None:
    tally = Tally().begun(Allotment(since=10, replicas=4)).begun(Allotment(since=30, replicas=2))
    assert [(each.since, each.until) for each in tally.times] == [(10, 30), (30, None)]
    assert seconds(tally, now=40) == 4 * 20 + 2 * 10
    assert seconds(tally.ended(35), now=99) == 4 * 20 + 2 * 5


def test_an_end_before_the_beginning_is_the_beginning() -> None:
    tally = Tally().begun(Allotment(since=10, replicas=1)).ended(5)
    assert [(each.since, each.until) for each in tally.times] == [(10, 10)]
    assert tally.ended(50) == tally


def test_very_many_times_keep_their_sum() -> None:
    chance, tally, now, told = random.Random(1), Tally(), 0.0, 0.0
    for _ in range(3 * MOST_TIMES):
        size, lasts = chance.randint(1, 9), chance.uniform(0, 100)
        tally = tally.begun(Allotment(since=now, replicas=size)).ended(now + lasts)
        told += size * lasts
        now += lasts + chance.uniform(0, 100)
    assert len(tally.times) == MOST_TIMES
    assert abs(seconds(tally, now) - told) < 1e-6 * told


def test_of_two_that_looked_the_one_that_saw_more_counts() -> None:
    asked = Tally(user="ada", team="vision")
    seen = Tally().begun(Allotment(since=10, replicas=1))
    ended = seen.ended(20)
    again = ended.begun(Allotment(since=30, replicas=1))
    assert asked.then(seen) == Tally(user="ada", team="vision", times=seen.times)
    for before, other, kept in ((seen, ended, ended), (ended, seen, ended), (again, ended, again)):
        assert before.then(other).times == kept.times
