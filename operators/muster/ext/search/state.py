"""What the events of a search say: each trial, how far it is, and what was told at each rung."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from muster.core.errors import SpecError
from muster.ext.search.spec import Event, EventKind, SearchSpec


class Phase(str, Enum):
    """What a trial does. `AGAIN`: its job failed, and another is to go on from its checkpoint."""

    NEW = "new"
    RUNNING = "running"
    PAUSED = "paused"
    AGAIN = "again"
    ENDED = "ended"
    FAILED = "failed"


@dataclass
class Trial:
    """One trial.

    :ivar jobs: those that have trained it, the newest last.
    :ivar began: the rung at which its job was to be compared first, or to end.
    :ivar goal: the rung at which it is compared next, or ends.
    :ivar values: what it told at each rung that it reached; None is NaN.
    :ivar value: what it told last, once it has told anything.
    :ivar reason: why it failed last.
    :ivar shown: whether it has told a value, ended or failed for good.
    :ivar ended_early: its script ended by itself before the last rung.
    """

    number: int
    params: Mapping[str, Any]
    phase: Phase = Phase.NEW
    jobs: list[str] = field(default_factory=list)
    began: int = 0
    goal: int = 0
    values: dict[int, float | None] = field(default_factory=dict)
    value: float | None = None
    failures: int = 0
    reason: str = ""
    shown: bool = False
    ended_early: bool = False

    @property
    def is_silent(self) -> bool:
        """Whether it ended well and never told the metric."""
        return self.phase is Phase.ENDED and not self.values and self.value is None

    @property
    def rung(self) -> int:
        """The highest rung that it reached; -1: none yet."""
        return max(self.values, default=-1)

    @property
    def is_finishing(self) -> bool:
        """Whether it runs once more to the rung that it had reached, to end there."""
        return self.goal in self.values


class SearchState:
    """A search so far. One event costs at most the logarithm of the trials, but for an insertion into a list.

    :ivar trials: by number.
    :ivar running: the numbers of the trials with a job. `new`: of those that had none yet. `again`: of those that were
        stopped between two rungs, or failed, and are to go on.
    :ivar shown: how many trials have shown how they do: they told a value, ended or failed for good.
    :ivar failed: how many trials failed for good. `silent`: how many ended and never told the metric.
    :ivar left_before: at k how many trials failed for good or ended by themselves when rung k was the next one they were to reach.
    :ivar resource: of what rungs count, what all trials have used for the rungs that they reached.
    :ivar closed: the event that closed it.
    """

    def __init__(self, spec: SearchSpec, events: Iterable[Event] = ()) -> None:
        self.spec = spec
        self.trials: list[Trial] = []
        self.running: set[int] = set()
        self.new: list[int] = []
        self.again: list[int] = []
        self.shown = 0
        self.failed = self.silent = 0
        self.left_before = [0] * len(spec.rungs)
        self.resource = 0.0
        self.closed: Event | None = None
        self._told: list[list[tuple[float, int]]] = [[] for _ in spec.rungs]
        self._paused: list[list[tuple[float, int]]] = [[] for _ in spec.rungs]
        for event in events:
            self.apply(event)

    def apply(self, event: Event) -> None:
        """Take in the next event. :raises SpecError: it cannot follow those before it."""
        if event.what is EventKind.CLOSED:
            self.closed = event
            return
        if event.what is EventKind.ASKED:
            if event.trial != len(self.trials):
                raise SpecError(f"trial {event.trial} is asked for, but the next one is {len(self.trials)}")
            self.trials.append(Trial(event.trial, event.params))
            self.new.append(event.trial)
            return
        if not 0 <= event.trial < len(self.trials):
            raise SpecError(f"{event.what.value}: there is no trial {event.trial}")
        _APPLY[event.what](self, self.trials[event.trial], event)

    def told(self, rung: int) -> int:
        """How many trials have reached a rung."""
        return len(self._told[rung])

    def known(self, rung: int) -> int:
        """How many trials have reached a rung with a value that is no NaN."""
        return bisect_left(self._told[rung], (math.inf, -1))

    def place(self, trial: Trial, rung: int) -> int:
        """A trial's place among those that reached a rung, from 0, the best; of equal ones the earlier trial is first."""
        return bisect_left(self._told[rung], (self.spec.order(trial.values[rung]), trial.number))

    def best_paused(self, rung: int) -> Trial | None:
        """The best of the trials that are paused at a rung; one whose value is NaN is the best only among its like."""
        heap = self._paused[rung]
        while heap:
            trial = self.trials[heap[0][1]]
            if trial.phase is Phase.PAUSED and trial.rung == rung:
                return trial
            heapq.heappop(heap)  # it was taken up again
        return None

    def best(self) -> Trial | None:
        """The best of the trials whose job has ended well."""
        ended = [trial for trial in self.trials if trial.phase is Phase.ENDED]
        return min(ended, key=self._order, default=None)

    def best_told(self) -> Trial | None:
        """The best of all trials that have told a value and can go on from it."""
        alive = [each for each in self.trials if each.values and each.phase in (Phase.PAUSED, Phase.ENDED)]
        return min(alive, key=self._order, default=None)

    def _order(self, trial: Trial) -> tuple[float, int]:
        return self.spec.order(trial.value), trial.number

    def _started(self, trial: Trial, event: Event) -> None:
        for waiting in (self.new, self.again):
            if trial.number in waiting:
                waiting.remove(trial.number)
        trial.phase, trial.began, trial.goal = Phase.RUNNING, event.rung, event.rung
        trial.jobs.append(event.job_id)
        self.running.add(trial.number)

    def _reached(self, trial: Trial, event: Event) -> None:
        if event.rung in trial.values:
            return  # a job that was started again from a checkpoint tells what was told before
        self._show(trial)
        before = self.spec.rungs[trial.rung] if trial.values else 0.0
        self.resource += max(0.0, self.spec.rungs[event.rung] - before)
        trial.values[event.rung] = trial.value = event.value
        trial.goal = min(event.rung + 1, self.spec.last)
        insort(self._told[event.rung], (self.spec.order(event.value), trial.number))
        if trial.phase is Phase.PAUSED:
            self._queue(trial)  # its job was stopped later than it told this

    def _was_paused(self, trial: Trial, event: Event) -> None:
        """Take in that a job was stopped. One that told a further rung meanwhile is paused there: its checkpoint is."""
        self.running.discard(trial.number)
        if event.rung < 0 or not trial.values:
            trial.phase = Phase.AGAIN
            self.again.append(trial.number)
            return
        trial.phase = Phase.PAUSED
        self._queue(trial)

    def _queue(self, trial: Trial) -> None:
        place = self.spec.order(trial.values[trial.rung]), trial.number
        heapq.heappush(self._paused[trial.rung], place)

    def _ended(self, trial: Trial, event: Event) -> None:
        self._show(trial)
        self.running.discard(trial.number)
        trial.phase = Phase.ENDED
        if trial.is_finishing:
            return  # its value is the one it was compared by; a script that has nothing left to train tells none
        trial.value, trial.ended_early = event.value, True
        self.left_before[trial.goal] += 1
        self.silent += trial.is_silent

    def _failed(self, trial: Trial, event: Event) -> None:
        trial.failures += 1
        trial.reason = event.reason
        trial.phase = Phase.FAILED if event.final else Phase.AGAIN
        self.running.discard(trial.number)
        if event.final:
            self._show(trial)
            self.failed += 1
            if not trial.is_finishing:
                self.left_before[trial.goal] += 1
        else:
            self.again.append(trial.number)

    def _show(self, trial: Trial) -> None:
        if not trial.shown:
            trial.shown = True
            self.shown += 1


_APPLY = {
    EventKind.STARTED: SearchState._started,
    EventKind.REACHED: SearchState._reached,
    EventKind.PAUSED: SearchState._was_paused,
    EventKind.ENDED: SearchState._ended,
    EventKind.FAILED: SearchState._failed,
}
