"""Forecasts when jobs start, by simulating the queue many times with durations of earlier runs.

Pure: an :class:`Competition` and planned jobs go in, quantiles of starts and ends come out. Each simulation draws one
duration for every job. It ignores faults, jobs that are submitted later, and which node has room for which pod.
"""

from __future__ import annotations

import heapq
import random
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from muster.core.job import TRIAL
from muster.core.status import JobState
from muster.volumes.protocols import Ledger

Amounts = Mapping[str, float]

_PLAYS = 40
NEWEST = 500
_UNKNOWN_SECONDS = 60.0  # of a job in a store where no job has ended
_OVERDUE = 0.5  # a job that runs longer than any before it goes on for half of what it has run


@dataclass(frozen=True, kw_only=True)
class Demand:
    """A job that runs, waits or is planned. Times are seconds since the epoch.

    :param name: its name for people. `after` refers to planned jobs by name, so their names are unique.
    :param history: the job name whose earlier durations are used; `name` if empty.
    :param choices: what the whole gang takes from each pool; of several choices the first that is free.
    :param line: the queue in which it waits. Within a line the higher priority is first, then the earlier `since`.
    :param started: None while it waits. One that runs and has to give its room back is among those that wait, and has it.
    :param after: the planned jobs that end before it is submitted.
    :param gpus: cards that it would hold; 0 if it uses only CPUs.
    """

    name: str
    choices: tuple[Amounts, ...]
    history: str = ""
    line: str = ""
    priority: int = 0
    since: float = 0.0
    started: float | None = None
    after: tuple[str, ...] = ()
    job_id: str | None = None
    gpus: int = 0


@dataclass(frozen=True, kw_only=True)
class TaskCost:
    """What a task costs that runs many jobs, such as a search.

    :param facts: a dataclass of its own, for JSON.
    :param lines: the same for people. `warnings`: what they should know before it runs.
    :param durations: seconds from its beginning to its end, one for each play; empty where they are not known.
    :param cpu_hours: at the median, as `gpu_hours`; None where that is not known.
    """

    facts: Any
    lines: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    durations: tuple[float, ...] = ()
    cpu_hours: float | None = None
    gpu_hours: float | None = None


@dataclass(frozen=True, kw_only=True)
class Competition:
    """What jobs of one place compete for, and which jobs compete now.

    :param pools: the total of each pool by name: a resource, a team's quota, a class of nodes.
    :param passed_seconds: by line, how long smaller jobs may pass its first job before free room is reserved for it; in
        a line without an entry they may always pass.
    :param turnover_seconds: from the end of one job to the start of the next one in its room.
    :param planned: the jobs to forecast, in order; a job that fits nowhere has no choices.
    :param unseen: what the counts leave out; empty if they are complete.
    :param down: the nodes that take no pods, each with the reason: their room is in no pool.
    """

    pools: Amounts
    running: tuple[Demand, ...] = ()
    waiting: tuple[Demand, ...] = ()
    passed_seconds: Mapping[str, float] = field(default_factory=dict)
    turnover_seconds: float = 0.0
    planned: tuple[Demand, ...] = ()
    unseen: str = ""
    down: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Span:
    """The median of all simulations, and their 90th percentile: seconds from now where nothing else is said."""

    p50: float
    p90: float

    @classmethod
    def of(cls, numbers: Sequence[float]) -> Span:
        """Return the span of some numbers; of none it is 0."""
        if not numbers:
            return cls(p50=0.0, p90=0.0)
        ordered = sorted(numbers)
        return cls(p50=ordered[len(ordered) // 2], p90=ordered[min(len(ordered) - 1, len(ordered) * 9 // 10)])


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """The forecast of one planned job.

    :param ahead: the jobs that would wait before it in its line, by name, the next to start first.
    :param known: whether its duration comes from earlier runs; otherwise it is a guess, and so are its end and what
        comes after it.
    """

    starts: Span
    ends: Span
    ahead: tuple[str, ...] = ()
    known: bool = True

    @property
    def at_once(self) -> bool:
        """Whether it starts now in nine of ten plays."""
        return self.starts.p90 <= 0.0


def durations(ledger: Ledger, *, newest: int = NEWEST) -> Mapping[str, Sequence[float]]:
    """Return seconds from start to end of the newest jobs that succeeded, by job name such as ``flights.train``.

    The job of `helm test`, which runs in no pod, tells nothing of others.
    """
    ids = ledger.jobs()[-newest:]
    took = {
        each.job_id: each.ended - each.started
        for each in ledger.statuses(ids)
        if each.state is JobState.SUCCEEDED and each.started is not None and each.ended is not None
    }
    found: dict[str, list[float]] = {}
    for job_id, spec in ledger.specs(list(took)).items():
        if spec.name != TRIAL:
            found.setdefault(spec.name, []).append(took[job_id])
    return found


def forecast(
    planned: Sequence[Demand],
    outlook: Competition,
    durations: Mapping[str, Sequence[float]],
    *,
    now: float,
) -> dict[str, Forecast]:
    """Return the forecast of each planned job that fits at all, by name.

    The same arguments give the same forecast. A job that does not fit even when all pools are free is left out, and so
    are the jobs after it.

    :param planned: in an order in which they can run.
    :param durations: seconds that earlier runs took, by job name.
    """
    every = sorted(seconds for each in durations.values() for seconds in each)
    history = {name: sorted(each) for name, each in durations.items() if each}
    dice = random.Random(len(planned))  # noqa: S311 - a play, not a secret
    found: dict[str, list[tuple[float, float]]] = {each.name: [] for each in planned}
    for _ in range(_PLAYS):
        drawn = [
            _draw(each, history.get(each.history or each.name) or every, dice, now)
            for each in (*outlook.running, *outlook.waiting, *planned)
        ]
        for name, times in _Play(planned, outlook, drawn, now).run().items():
            found[name].append(times)
    return {
        each.name: Forecast(
            starts=Span.of([start for start, _ in found[each.name]]),
            ends=Span.of([end for _, end in found[each.name]]),
            ahead=_ahead(each, outlook),
            known=(each.history or each.name) in history,
        )
        for each in planned
        if len(found[each.name]) == _PLAYS
    }


def _draw(demand: Demand, history: Sequence[float], dice: random.Random, now: float) -> float:
    """Draw a job's duration, or its remaining one, from earlier runs that took at least as long as it has run."""
    if not history:
        return _UNKNOWN_SECONDS
    ran = 0.0 if demand.started is None else max(0.0, now - demand.started)
    longer = bisect_right(history, ran)
    if longer == len(history):
        return history[-1] if not ran else ran * _OVERDUE
    return history[dice.randrange(longer, len(history))] - ran


def _ahead(planned: Demand, outlook: Competition) -> tuple[str, ...]:
    own = [
        each
        for each in outlook.waiting
        if each.line == planned.line and each.priority >= planned.priority and each.started is None
    ]
    return tuple(each.name for each in sorted(own, key=_order))


def _order(demand: Demand) -> tuple[float, float]:
    return -demand.priority, demand.since


class _Play:
    """One simulation. Jobs are numbered: running, then waiting, then planned ones.

    Waiting jobs of one line with the same needs form a group, so the cost of a look at the queue depends on the
    number of groups, not of jobs.
    """

    def __init__(
        self, planned: Sequence[Demand], outlook: Competition, drawn: Sequence[float], now: float
    ) -> None:
        self._outlook = outlook
        self._jobs = (*outlook.running, *outlook.waiting, *planned)
        self._first_planned = len(self._jobs) - len(planned)
        self._drawn = drawn
        self._now = now
        self._free = dict(outlook.pools)
        self._taken: dict[int, Amounts] = {}
        self._ends: list[tuple[float, int]] = []
        self._groups: dict[tuple[str, int], list[tuple[float, float, int]]] = {}
        self._shapes: dict[tuple[tuple[tuple[str, float], ...], ...], int] = {}
        self._left = {each.name: set(each.after) for each in planned}
        self._times: dict[str, tuple[float, float]] = {}

    def run(self) -> dict[str, tuple[float, float]]:
        """Play to the end and return start and end of each planned job, in seconds from now."""
        for number in range(len(self._outlook.running)):
            self._hold(number, self._jobs[number].choices[0], self._drawn[number])
        for number in range(len(self._outlook.running), self._first_planned):
            self._enter(number, self._jobs[number].since - self._now)
        self._submit(0.0)
        self._admit(0.0)
        planned = len(self._jobs) - self._first_planned
        while self._ends and len(self._times) < planned:
            at, _ = self._ends[0]
            while self._ends and self._ends[0][0] <= at:
                self._give_back(heapq.heappop(self._ends)[1])
            self._submit(at)
            self._admit(at + self._outlook.turnover_seconds)
        return self._times

    def _submit(self, at: float) -> None:
        """Put planned jobs into their lines once all jobs before them have ended."""
        for number in range(self._first_planned, len(self._jobs)):
            name = self._jobs[number].name
            if name in self._left and not self._left[name]:
                del self._left[name]
                self._enter(number, at)

    def _enter(self, number: int, since: float) -> None:
        job = self._jobs[number]
        needs = tuple(tuple(sorted(choice.items())) for choice in job.choices)
        shape = self._shapes.setdefault(needs, len(self._shapes))
        heapq.heappush(self._groups.setdefault((job.line, shape), []), (-float(job.priority), since, number))

    def _admit(self, at: float) -> None:
        """Start what fits, in order; reserve free room for a job that others have passed for long enough."""
        room = dict(self._free)
        heads = [(group[0], key) for key, group in self._groups.items() if group]
        heapq.heapify(heads)
        while heads:
            (_, since, number), key = heapq.heappop(heads)
            choice = fitting(self._jobs[number].choices, room)
            if choice is None:
                passed = self._outlook.passed_seconds.get(key[0])
                if passed is not None and at - since >= passed:
                    take(room, self._jobs[number].choices[0])
                continue  # those behind it in the group need the same
            heapq.heappop(self._groups[key])
            take(room, choice)
            self._hold(number, choice, at + self._drawn[number], started=at)
            if self._groups[key]:
                heapq.heappush(heads, (self._groups[key][0], key))

    def _hold(self, number: int, choice: Amounts, end: float, *, started: float | None = None) -> None:
        take(self._free, choice)
        self._taken[number] = choice
        heapq.heappush(self._ends, (end, number))
        if started is not None and number >= self._first_planned:
            self._times[self._jobs[number].name] = (started, end)

    def _give_back(self, number: int) -> None:
        for pool, amount in self._taken.pop(number).items():
            self._free[pool] = self._free.get(pool, 0.0) + amount
        name = self._jobs[number].name
        if number >= self._first_planned:
            for left in self._left.values():
                left.discard(name)


def fitting(choices: Iterable[Amounts], room: Amounts) -> Amounts | None:
    """Return the first of several choices that has room; None where none has."""
    for choice in choices:
        if all(amount <= room.get(pool, 0.0) + 1e-9 for pool, amount in choice.items()):
            return choice
    return None


def take(room: dict[str, float], choice: Amounts) -> None:
    """Take a choice out of what is free, which may become less than nothing."""
    for pool, amount in choice.items():
        room[pool] = room.get(pool, 0.0) - amount
