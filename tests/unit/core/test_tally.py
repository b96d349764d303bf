from __future__ import annotations

import math
from datetime import datetime
from typing import Any

import pytest

from muster.core.errors import SpecError
from muster.core.tally import MOST_TIMES, Allotment, HourBudget, Tally, month_of


def test_one_time_ends_where_the_next_begins() -> None:
    tally = Tally().begun(Allotment(since=10, replicas=4)).begun(Allotment(since=30, replicas=2))
    assert [(each.since, each.until) for each in tally.times] == [(10, 30), (30, None)]
    assert [(each.until, each.replicas) for each in tally.ended(35).times] == [(30, 4), (35, 2)]


def test_an_end_before_the_beginning_is_the_beginning() -> None:
    tally = Tally().begun(Allotment(since=10, replicas=1)).ended(5)
    assert [(each.since, each.until) for each in tally.times] == [(10, 10)]
    assert tally.ended(50) == tally


def test_of_very_many_times_the_newest_stay() -> None:
    tally = Tally(user="ada")
    for now in range(3 * MOST_TIMES):
        tally = tally.begun(Allotment(since=float(now), replicas=1))
    assert [each.since for each in tally.times] == [*range(2 * MOST_TIMES, 3 * MOST_TIMES)]


def test_of_two_that_looked_the_one_that_saw_more_counts() -> None:
    asked = Tally(user="ada", team="vision")
    seen = Tally().begun(Allotment(since=10, replicas=1))
    ended = seen.ended(20)
    again = ended.begun(Allotment(since=30, replicas=1))
    assert asked.merged(seen) == Tally(user="ada", team="vision", times=seen.times)
    for before, other, kept in ((seen, ended, ended), (ended, seen, ended), (again, ended, again)):
        assert before.merged(other).times == kept.times


def test_a_month_is_that_of_the_calendar_in_utc() -> None:
    for now, since, until in (
        ("2026-12-31T23:59:59", "2026-12-01", "2027-01-01"),
        ("2028-02-29T12:00:00", "2028-02-01", "2028-03-01"),
        ("2026-11-01T00:00:00", "2026-11-01", "2026-12-01"),
    ):
        found = month_of(datetime.fromisoformat(f"{now}+00:00").timestamp())
        assert found == tuple(
            datetime.fromisoformat(f"{day}T00:00:00+00:00").timestamp() for day in (since, until)
        )


@pytest.mark.parametrize(
    "given", [{}, {"gpu_hours": -1}, {"cpu_hours": math.nan}, {"cpu_hours": True}, {"gpu_hours": math.inf}]
)
def test_what_is_no_budget_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=r"a budget of \[.*\]: give gpu_hours, cpu_hours or both, 0 or more"):
        HourBudget(**given)
