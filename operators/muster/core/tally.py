"""Who is charged for a job, when it held its resources, whether or not it made use of them, and how many hours a month may have."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone

from muster.core.errors import SpecError

MOST_TIMES = 500


@dataclass(frozen=True, kw_only=True)
class HourBudget:
    """What the jobs of a Dag or a team may hold in a month (in UTC), before further jobs wait for the next one.

    :param gpu_hours: of one card, and `cpu_hours` of one core; None is no limit.
    """

    gpu_hours: float | None = None
    cpu_hours: float | None = None

    def __post_init__(self) -> None:
        given = [hours for hours in (self.gpu_hours, self.cpu_hours) if hours is not None]
        if not given or not all(type(hours) in (int, float) and 0 <= hours < math.inf for hours in given):
            raise SpecError(f"a budget of {given!r:.60}: give gpu_hours, cpu_hours or both, 0 or more")


def month_of(now: float) -> tuple[float, float]:
    """Return when the month begins that `now` is in, and when the next one does."""
    day = datetime.fromtimestamp(now, timezone.utc)
    begins = datetime(day.year, day.month, 1, tzinfo=timezone.utc)
    return begins.timestamp(), (begins + timedelta(days=31)).replace(day=1).timestamp()


@dataclass(frozen=True, kw_only=True)
class Allotment:
    """One such time, in seconds since the epoch. The number of replicas is the same throughout.

    :param gpus: cards of all replicas together; 0 where a gang that asked for cards runs on CPUs.
    :param until: None while it goes on.
    """

    since: float
    replicas: int
    gpus: int = 0
    until: float | None = None


@dataclass(frozen=True, kw_only=True)
class Tally:
    """What the use of one job is counted by.

    :param user: who triggered its run; `team` whose Dag it is; empty where they are not known.
    :param times: in order; only the last may go on. Of more than 500 the oldest are forgotten.
    """

    user: str = ""
    team: str = ""
    times: tuple[Allotment, ...] = ()

    @property
    def current(self) -> Allotment | None:
        """The time that goes on."""
        return self.times[-1] if self.times and self.times[-1].until is None else None

    def ended(self, at: float) -> Tally:
        """Return this with an end of the time that goes on."""
        if self.current is None:
            return self
        return replace(
            self, times=(*self.times[:-1], replace(self.current, until=max(at, self.current.since)))
        )

    def begun(self, following: Allotment) -> Tally:
        """Return this with one more time; the one that goes on ends where that begins."""
        return replace(self, times=(*self.ended(following.since).times, following)[-MOST_TIMES:])

    def longer(self, other: Tally) -> Tally:
        """Return this with the later end that `other` has of the last time: a job that has ended held its resources until then."""
        last, later = self.times[-1:], other.times[-1:]
        if not last or not later or last[0].since != later[0].since or self.current or other.current:
            return self
        return replace(
            self, times=(*self.times[:-1], max(last[0], later[0], key=lambda each: each.until or 0.0))
        )

    def merged(self, other: Tally) -> Tally:
        """Return this with what `other` adds: several processes may look at one job, and one of them saw more."""

        def seen(each: Tally) -> tuple[float, bool]:
            return (each.times[-1].since if each.times else 0.0, each.current is None)

        return Tally(
            user=self.user or other.user,
            team=self.team or other.team,
            times=self.times if seen(self) > seen(other) else other.times,
        )
