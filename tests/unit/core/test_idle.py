"""When a gang counts as idle: 500 traces of work that comes in bursts, none of which may end, and what really does nothing."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from muster.core.idle import QUIET, idle_seconds, quiet
from muster.core.series import Curve, Series

LIMIT = 1200.0
EVERY = 10.0

Sample = tuple[float, list[float], bool]  # cores, shares of the cards, whether a line came


def longest(samples: list[list[Sample]]) -> float:
    """Return the longest time for which all replicas did nothing, as a backend sees it."""
    before: list[float | None] = [None] * len(samples)
    most, then = 0.0, before
    for now in zip(*samples, strict=True):
        before = [
            quiet(last, EVERY, cores=cores, shares=shares, has_output=has_output)
            for last, (cores, shares, has_output) in zip(before, now, strict=True)
        ]
        all_of_them = min((-1.0 if last is None else last) for last in before)
        if all_of_them > most:
            most, then = all_of_them, before
    use = tuple(
        Curve(name=QUIET, source=f"main-{number}", seconds=(1000.0,), values=(last,), told=1)
        for number, last in enumerate(then)
        if last is not None
    )
    return idle_seconds(Series(use=use), replicas=len(samples), now=1000.0 + EVERY / 2)


def bursts(chance: random.Random, *, cards: bool) -> list[list[Sample]]:
    """Return four hours of a gang that works now and then, in one way or another, with pauses below the limit.

    One replica works, or several do; the others wait for it, which is not idle. Before it begins it may wait for long.
    """
    size, length = chance.randint(1, 4), int(4 * 3600 / EVERY)
    starts = chance.choice((0, 0, chance.randint(1, 400)))
    trace: list[list[Sample]] = [[(0.0, [0.0] * cards, False)] * length for _ in range(size)]
    at = starts
    while at < length:
        for _ in range(chance.randint(1, 8)):
            who = trace[chance.randrange(size)]
            how = "card" if cards else chance.choice(("cpu", "line"))
            work: Sample = {
                "card": (chance.random(), [chance.uniform(0.01, 1)], chance.random() < 0.2),
                "cpu": (chance.uniform(0.05, 8), [], False),
                "line": (chance.uniform(0, 0.04), [], True),
            }[how]
            if at < length:
                who[at] = work
            at += 1
        at += chance.randint(0, int(LIMIT / EVERY) - 2)
    if starts == 0:  # each has begun: the pauses of one are no proof that another has not
        trace = [[(0.3, [0.0] * cards, True), *each[1:]] for each in trace]
    return trace


def still(chance: random.Random, *, cards: bool) -> list[list[Sample]]:
    """Return work in bursts after which all do nothing for the limit, with what a process that sleeps costs."""
    trace = bursts(chance, cards=cards)
    first = [(0.2, [0.5] * cards, True)]
    noise: Callable[[], Sample] = lambda: (  # noqa: E731
        chance.uniform(0, 4.0 if cards else 0.045),
        [chance.uniform(0, 0.009)] * cards,
        cards and chance.random() < 0.3,
    )
    after = int(LIMIT / EVERY) + chance.randint(1, 200)
    return [[*first, *each, *(noise() for _ in range(after))] for each in trace]


@pytest.mark.parametrize("first", range(0, 500, 25))
def test_work_in_bursts_is_never_idle_and_what_stops_is(first: int) -> None:
    for seed in range(first, first + 25):
        cards = seed % 2 == 1
        assert longest(bursts(random.Random(seed), cards=cards)) < LIMIT, seed
        assert longest(still(random.Random(seed), cards=cards)) >= LIMIT, seed


def test_one_that_has_not_begun_is_not_idle() -> None:
    nothing: list[Sample] = [(0.0, [], False)] * 1000
    works: list[Sample] = [(0.5, [], True), *nothing[1:]]
    assert longest([nothing]) == 0
    assert longest([works, nothing]) == 0  # the other's image is built
    assert longest([works, works]) == 999 * EVERY


def test_one_that_is_not_heard_of_is_not_idle() -> None:
    use = (Curve(name=QUIET, source="main-0", seconds=(100.0,), values=(5000.0,), told=1),)
    series = Series(start=1000.0, use=use)
    assert idle_seconds(series, replicas=1, now=1110.0) == 5000.0
    assert idle_seconds(series, replicas=1, now=1200.0) == 0.0
    assert idle_seconds(series, replicas=2, now=1110.0) == 0.0
    assert idle_seconds(Series(), replicas=1, now=0.0) == 0.0
