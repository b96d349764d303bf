"""Who is charged for a job, and when it held its resources, whether or not it made use of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

MOST_TIMES = 500


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

    def merged(self, other: Tally) -> Tally:
        """Return this with what `other` adds: several processes may look at one job, and one of them saw more."""

        def seen(each: Tally) -> tuple[float, bool]:
            return (each.times[-1].since if each.times else 0.0, each.current is None)

        return Tally(
            user=self.user or other.user,
            team=self.team or other.team,
            times=self.times if seen(self) > seen(other) else other.times,
        )
