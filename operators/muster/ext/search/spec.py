"""The search: what it tries, by which rules, and what has happened in it.

A trial is one point of the space; a job trains it. A rung is how far a trial trains before it is compared with the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from typing import Any

from muster.core.errors import SpecError
from muster.core.job import JobSpec
from muster.core.names import check_identifier
from muster.core.tally import Tally
from muster.ext.search.space import Dimension, check_space, grid_size

_MOST_TRIALS = 100_000


class Mode(str, Enum):
    """Which values of the metric are better."""

    MAX = "max"
    MIN = "min"


class Sampler(str, Enum):
    """How the points of the space are chosen."""

    RANDOM = "random"
    GRID = "grid"
    TPE = "tpe"


class Stopping(str, Enum):
    """Which trials stop at a rung: asynchronous or synchronous successive halving, or none."""

    ASHA = "asha"
    HALVING = "halving"
    NONE = "none"


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What a search may use at most; 0 is no limit. Trials that run when it is used up stop at their next rung.

    :param resource: of what rungs count, such as epochs, over all trials.
    :param gpu_hours: of the cards that its trials held. `seconds`: from its beginning.
    """

    resource: float = 0.0
    gpu_hours: float = 0.0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        for name in ("resource", "gpu_hours", "seconds"):
            _check_number(f"budget's {name}", getattr(self, name), least=0)


@dataclass(frozen=True, kw_only=True)
class SearchSpec:
    """What is searched for, and how.

    :param metric: the number that trials tell; `mode` says whether more of it is better.
    :param trials: how many points are tried at most.
    :param rungs: values of the resource, rising; a trial ends at the last one.
    :param resource: the number with which a trial tells how far it is; empty: the one that it tells with a total.
    :param until: the trial's param that says how far it trains; the search sets it. Empty: the trial has none.
    :param at_once: the most trials that run at once; None: as many as there is room for.
    :param retries: how often a trial that failed is started again from its checkpoint.
    :param earlier: searches whose trials the sampler knows from the start.
    """

    space: Mapping[str, Dimension]
    metric: str
    mode: Mode = Mode.MAX
    trials: int = 27
    rungs: tuple[float, ...] = (1.0,)
    resource: str = ""
    until: str = ""
    at_once: int | None = None
    stopping: Stopping = Stopping.ASHA
    sampler: Sampler = Sampler.RANDOM
    seed: int = 0
    retries: int = 1
    budget: Budget = field(default_factory=Budget)
    earlier: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "space", MappingProxyType(dict(self.space)))
        object.__setattr__(self, "rungs", tuple(float(each) for each in self._checked_rungs()))
        object.__setattr__(self, "earlier", tuple(self.earlier))
        check_space(self.space)
        check_identifier("metric", self.metric)
        if self.resource:
            check_identifier("resource", self.resource)
        if self.until:
            check_identifier("param", self.until)
            if self.until in self.space:
                raise SpecError(
                    f"until is {self.until!r}, which the space has too: the search sets it to the rungs"
                )
        _check_count("trials", self.trials, least=1, most=_MOST_TRIALS)
        if self.at_once is not None:
            _check_count("at_once", self.at_once, least=1, most=_MOST_TRIALS)
        _check_count("retries", self.retries, least=0, most=100)
        _check_count("seed", self.seed, least=0, most=2**32 - 1)
        size = grid_size(self.space) if self.sampler is Sampler.GRID else self.trials
        object.__setattr__(self, "_points", min(self.trials, size))  # the rules ask for it at each decision

    @property
    def points(self) -> int:
        """How many trials there can be: of a grid not more than its points."""
        points: int = getattr(self, "_points")  # noqa: B009 no field: it is not written
        return points

    @property
    def last(self) -> int:
        """The index of the last rung."""
        return len(self.rungs) - 1

    def better(self, one: float | None, other: float | None) -> bool:
        """Whether the first value is better; None, which stands for NaN, is the worst."""
        return self.order(one) < self.order(other)

    def order(self, value: float | None) -> float:
        """Return a number that sorts the best value first."""
        if value is None:
            return math.inf
        return -value if self.mode is Mode.MAX else value

    def _checked_rungs(self) -> tuple[float, ...]:
        rungs = self.rungs
        if not isinstance(rungs, (tuple, list)) or not rungs:
            raise SpecError(f"rungs are {rungs!r:.60}: need one or more numbers, such as (1, 3, 9, 27)")
        for each in rungs:
            _check_number("a rung", each, least=0)
        if any(one >= other for one, other in zip((0, *rungs), rungs, strict=False)):
            raise SpecError(
                f"rungs are {tuple(rungs)!r:.60}: each must be above the one before it, and the first above 0"
            )
        return tuple(rungs)


@dataclass(frozen=True, kw_only=True)
class Search:
    """A search as the store keeps it.

    :param spec: what it looks for. `trial`: the job of a trial; each trial completes its params by its own.
    :param began: seconds since the epoch. `tally`: for whom its trials are counted.
    """

    spec: SearchSpec
    trial: JobSpec
    began: float
    tally: Tally | None = field(default=None, metadata={"later": True})

    def __post_init__(self) -> None:
        if unknown := [name for name in self.spec.space if name not in self.trial.params]:
            raise SpecError(f"the trial's job has no param {unknown[0]!r:.60}, which the space has")
        if self.spec.until and self.spec.until not in self.trial.params:
            raise SpecError(
                f"the trial's job has no param {self.spec.until!r}, which is to say how far it trains"
            )

    def job(self, params: Mapping[str, Any], *, until: float, follows: str | None) -> JobSpec:
        """Return the job that trains a trial.

        :param params: the trial's point of the space.
        :param until: the value of the resource at which it ends; only where the search has such a param.
        :param follows: the trial's last job, whose checkpoints it goes on from.
        """
        given = {name: value for name, value in self.trial.params.items() if name not in self.spec.space}
        if self.spec.until:
            given[self.spec.until] = int(until) if until.is_integer() else until
        return replace(self.trial, params={**given, **params}, follows=follows)


class EventKind(str, Enum):
    """The kinds of event in a search."""

    ASKED = "asked"
    STARTED = "started"
    REACHED = "reached"
    PAUSED = "paused"
    ENDED = "ended"
    FAILED = "failed"
    CLOSED = "closed"


@dataclass(frozen=True, kw_only=True)
class Event:
    """One thing that happened. The events of a search, in their order, are all that is known of it.

    =========  =====================================================================================
    asked      the sampler chose `params` for a new trial
    started    `job_id` trains the trial, on from its checkpoint; `rung` is where it is to be compared next, or to end
    reached    the trial told `value` at `rung`; None is NaN
    paused     its job is ended at `rung`, or where that is -1 between two rungs; its checkpoint stays
    ended      its job succeeded; `value` is the last that it told, None where that was NaN or nothing
    failed     its job failed, for `reason`; `final`: it is not started again
    closed     the search is over: `trial` is the best, or -1, and `reason` says why there is none
    =========  =====================================================================================

    :param at: seconds since the epoch.
    """

    what: EventKind
    at: float
    trial: int = -1
    params: Mapping[str, Any] = field(default_factory=dict)
    job_id: str = ""
    rung: int = -1
    value: float | None = None
    reason: str = ""
    final: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "params", MappingProxyType(dict(self.params)))


@dataclass(frozen=True, kw_only=True)
class EventPage:
    """Some events of a search, in their order. :param end: where the next ones begin, to be asked for."""

    events: tuple[Event, ...]
    end: int


def _check_count(what: str, value: object, *, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise SpecError(f"{what} is {value!r:.60}: need a whole number from {least} to {most}")


def _check_number(what: str, value: object, *, least: float) -> None:
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not math.isfinite(value)
        or value < least
    ):
        raise SpecError(f"{what} is {value!r:.60}: need a number, {least:g} or more")
