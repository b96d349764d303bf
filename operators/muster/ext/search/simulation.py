"""Plays a search with workers that take no time: by the same state, rules and sampling as a real one.

To see what a search would cost before it is run; and for tests and benchmarks.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from muster.ext.search.rules import Ask, Close, Spent, Take, next_move, passes
from muster.ext.search.sampling import Sampling
from muster.ext.search.spec import Event, EventKind, SearchSpec
from muster.ext.search.state import SearchState, Trial


class Points(Protocol):
    """What chooses the params of new trials; see :class:`muster.ext.search.sampling.Sampling`."""

    def ask(self, state: SearchState) -> dict[str, Any] | None:
        """Return the params of the next trial; None where there is no further point."""


Curve = Callable[[Mapping[str, Any], float], float | None]
"""What a trial with these params tells at this value of the resource; None is NaN."""


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Seconds that a simulated worker takes.

    :param unit: for one of what rungs count, of a trial with these params.
    :param start: from a free place to a trial's first step.
    :param stop: from a rung at which a trial pauses to a free place.
    :param anew: a trial that is taken up again trains from its beginning: it has no checkpoint.
    :param gpus: that each worker holds, for a budget of them.
    """

    unit: Callable[[Mapping[str, Any]], float] = lambda _: 1.0
    start: float = 0.0
    stop: float = 0.0
    anew: bool = False
    gpus: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Played:
    """How a simulated search went.

    :param seconds: from its beginning to its end.
    :param busy: worker-seconds in which trials trained, started or stopped.
    :param trained: of what rungs count, what all trials have trained; `repeated` is what was trained before.
    :param best: the trial that it ended with, and its value.
    """

    state: SearchState
    events: list[Event] = field(default_factory=list)
    seconds: float = 0.0
    busy: float = 0.0
    trained: float = 0.0
    repeated: float = 0.0
    best: int = -1
    value: float | None = None


def play(
    spec: SearchSpec,
    curve: Curve,
    *,
    workers: int,
    costs: Costs | None = None,
    sampling: Callable[[SearchSpec], Points] = Sampling,
) -> Played:
    """Play a search to its end. :param sampling: makes what chooses the params of new trials."""
    return SearchPlay(spec, curve, workers, costs or Costs(), sampling).run()


@dataclass
class SearchPlay:
    """One play; see :func:`play`. What goes wrong with its trials a subclass plays."""

    spec: SearchSpec
    curve: Curve
    workers: int
    costs: Costs
    sampling: Callable[[SearchSpec], Points]

    def __post_init__(self) -> None:
        self._free = min(self.workers, self.spec.at_once or self.workers)
        self._now = self._busy = self._trained = self._repeated = 0.0
        self.events: list[Event] = []
        self._coming: list[tuple[float, int, Callable[[], None]]] = []
        self._exhausted = False
        self.state, self.chosen = SearchState(self.spec), self.sampling(self.spec)

    def run(self) -> Played:
        """Play it."""
        while True:
            closed = self._start()
            if closed is not None:
                self.tell(EventKind.CLOSED, closed.best, reason=closed.reason)
                break
            self._now, _, happen = heapq.heappop(self._coming)
            happen()
        value = self.state.trials[closed.best].value if closed.best >= 0 else None
        return Played(
            state=self.state,
            events=self.events,
            seconds=self._now,
            busy=self._busy,
            trained=self._trained,
            repeated=self._repeated,
            best=closed.best,
            value=value,
        )

    def _start(self) -> Close | None:
        """Fill the free places; return the end of the search, if it is over."""
        while self._free:
            move = next_move(self.state, self._spent())
            if isinstance(move, Close):
                return move
            if isinstance(move, Ask):
                params = self.chosen.ask(self.state)
                if params is None:
                    self._exhausted = True
                else:
                    self.tell(EventKind.ASKED, len(self.state.trials), params=params)
            elif isinstance(move, Take):
                self._take(self.state.trials[move.trial], move.rung)
            else:
                return None
        return None

    def _spent(self) -> Spent:
        hours = self._busy * self.costs.gpus / 3600
        return Spent(seconds=self._now, gpu_hours=hours, exhausted=self._exhausted)

    def _take(self, trial: Trial, rung: int) -> None:
        self._free -= 1
        self.tell(EventKind.STARTED, trial.number, job_id=f"{trial.number}-{len(trial.jobs)}", rung=rung)
        self.begin(trial.number, rung)

    def begin(self, number: int, rung: int) -> None:
        """Begin the job that a trial has just been given."""
        trial = self.state.trials[number]
        again = self._again(trial)
        if trial.is_finishing:
            self.later(self.costs.start + again, lambda: self._end(number))
        else:
            self.train(number, rung, before=self.costs.start + again)

    def _again(self, trial: Trial) -> float:
        """The seconds in which a trial trains what it has trained before."""
        if not self.costs.anew or not trial.values:
            return 0.0
        units = self.spec.rungs[trial.rung]
        self._trained += units
        self._repeated += units
        return units * self.costs.unit(trial.params)

    def train(self, number: int, rung: int, *, before: float = 0.0) -> None:
        """Train a trial from its last rung to this one. :param before: seconds that pass first."""
        trial = self.state.trials[number]
        units = self.spec.rungs[rung] - (self.spec.rungs[trial.rung] if trial.values else 0.0)
        self._trained += units
        self.later(before + units * self.costs.unit(trial.params), lambda: self._reach(number, rung))

    def _reach(self, number: int, rung: int) -> None:
        trial = self.state.trials[number]
        self.tell(EventKind.REACHED, number, rung=rung, value=self.curve(trial.params, self.spec.rungs[rung]))
        if rung == self.spec.last:
            self._end(number)
        elif passes(self.state, self.state.trials[number], rung, self._spent()):
            self.train(number, rung + 1)
        else:
            self.tell(EventKind.PAUSED, number, rung=rung)
            self.later(self.costs.stop, self.leave)

    def _end(self, number: int) -> None:
        self.tell(EventKind.ENDED, number, value=self.state.trials[number].value)
        self.leave()

    def leave(self) -> None:
        """Give a place back."""
        self._free += 1

    def later(self, seconds: float, happen: Callable[[], None]) -> None:
        """Schedule an event after a number of seconds of a worker."""
        self._busy += seconds
        heapq.heappush(self._coming, (self._now + seconds, len(self.events), happen))

    def tell(self, what: EventKind, trial: int, **fields: Any) -> None:
        """Take in what happened."""
        event = Event(what=what, at=self._now, trial=trial, **fields)
        self.events.append(event)
        self.state.apply(event)
