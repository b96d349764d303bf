"""How many cards stand idle while a gang waits, and how many an ideal queue would leave idle.

A gang waits from its arrival until all of its ranks run, and uses its cards from then until its last rank has ended. So what
a gang takes to start and to end counts as idle, in an ideal queue as in a real one.
"""

from __future__ import annotations

import heapq
import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What a gang needs. Times are seconds since any moment, the same for all.

    :param start_seconds: from when it is let in until all of its ranks run.
    :param run_seconds: until its last rank has ended.
    :param end_seconds: until its room is free for another gang.
    """

    cards: int
    arrived: float
    start_seconds: float
    run_seconds: float
    end_seconds: float


@dataclass(frozen=True, kw_only=True)
class Run:
    """When a gang came, when all of its ranks ran, and when its last one had ended."""

    cards: int
    arrived: float
    began: float
    ended: float


@dataclass(frozen=True, kw_only=True)
class Idle:
    """What became of a quota's cards while at least one gang waited.

    :param share: of all cards of that time, those that were idle.
    :param fitting: of all cards of that time, those that were idle while a gang waited that would have fitted in them.
    :param wait_seconds: a gang's wait, on average.
    """

    share: float
    fitting: float
    wait_seconds: float


def idle(runs: Sequence[Run], *, quota: int) -> Idle:
    """Add up the cards of a quota that were idle while a gang waited."""
    of_all = of_idle = of_fitting = 0.0
    moments = sorted({at for run in runs for at in (run.arrived, run.began, run.ended)})
    for begin, end in pairwise(moments):
        waiting = [run.cards for run in runs if run.arrived <= begin < run.began]
        if waiting:
            free = quota - sum(run.cards for run in runs if run.began <= begin < run.ended)
            of_all += quota * (end - begin)
            of_idle += free * (end - begin)
            of_fitting += free * (end - begin) if min(waiting) <= free else 0.0
    return Idle(
        share=of_idle / of_all if of_all else 0.0,
        fitting=of_fitting / of_all if of_all else 0.0,
        wait_seconds=statistics.fmean(run.began - run.arrived for run in runs),
    )


def played(demands: Sequence[Demand], *, quota: int, passing: bool) -> list[Run]:
    """Play an ideal queue, which lets a gang in at the very moment at which its room is free.

    :param passing: whether a gang that fits passes earlier ones that do not (Kueue's BestEffortFIFO), or waits behind
        them (StrictFIFO).
    :raises ValueError: a gang is larger than the quota.
    """
    largest = max((demand.cards for demand in demands), default=0)
    if largest > quota:
        raise ValueError(f"a gang has {largest} cards, the quota is {quota}: it would wait for ever")
    coming = deque(sorted(demands, key=lambda demand: demand.arrived))
    waiting: list[Demand] = []
    frees: list[tuple[float, int]] = []  # when cards come free, and how many
    runs: list[Run] = []
    while coming or waiting:
        now = min(coming[0].arrived if coming else math.inf, frees[0][0] if frees else math.inf)
        while frees and frees[0][0] <= now:
            quota += heapq.heappop(frees)[1]
        while coming and coming[0].arrived <= now:
            waiting.append(coming.popleft())
        for demand in _let_in(waiting, free=quota, passing=passing):
            waiting.remove(demand)
            quota -= demand.cards
            began = now + demand.start_seconds
            ended = began + demand.run_seconds
            runs.append(Run(cards=demand.cards, arrived=demand.arrived, began=began, ended=ended))
            heapq.heappush(frees, (ended + demand.end_seconds, demand.cards))
    return runs


def _let_in(waiting: Sequence[Demand], *, free: int, passing: bool) -> list[Demand]:
    found = []
    for demand in waiting:
        if demand.cards <= free:
            free -= demand.cards
            found.append(demand)
        elif not passing:
            break
    return found
