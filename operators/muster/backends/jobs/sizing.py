"""How many replicas an elastic gang may have, from what jobs compete for; and when it may grow: at a checkpoint, since it goes on from there."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from muster.backends.forecast import Competition, Demand, fitting, take

Seen = Mapping[str, tuple[float, ...]]


def resized(why: str, now: int, most: int) -> str:
    """Return the line with which a gang's log says that it goes on with another number of replicas."""
    return f"{why}: the gang goes on from its checkpoint with {now} of up to {most} replicas"


LOOK_SECONDS = 1.0
"""Between two looks of a gang at what others wait for, and at its checkpoints."""


class Growth:
    """When a gang may grow: there is room for more, and a checkpoint has been written since it came.

    A checkpoint is whole where a file is as it was at the look before, or another file has taken its name: what is
    written in place all the time never counts.

    :param see: returns by path what changes when a file does, first what changes when another takes its place.
    """

    def __init__(self, see: Callable[[], Seen]) -> None:
        self._see = see
        self._first: Seen | None = None
        self._before: Seen = {}

    def due(self, *, room: bool) -> bool:
        """Look again, a while after the look before. :param room: whether there is room for more now."""
        if not room:
            self._first = None
            return False
        before, self._before = self._before, self._see()
        if (first := self._first) is None:
            self._first = self._before
            return False
        return any(
            path in before
            and before[path] != first.get(path)
            and (now == before[path] or now[0] != before[path][0])
            for path, now in self._before.items()
        )


class Sizing:
    """What is left for one elastic gang, whatever it holds itself.

    :param outlook: its `planned` are the gang with each number of replicas, from `least` on.
    :param job_id: the gang's, which is left out of what runs and waits.
    """

    def __init__(self, outlook: Competition, *, job_id: str, least: int) -> None:
        self._sizes = dict(enumerate(outlook.planned, start=least))
        self._waiting = [each for each in outlook.waiting if each.job_id != job_id]
        self._free = dict(outlook.pools)
        for each in outlook.running:
            if each.job_id != job_id and each.choices:
                take(self._free, each.choices[0])

    def most(self) -> int | None:
        """Return the most replicas that have room beside what every job that waits needs; None where none has."""
        room = dict(self._free)
        for each in self._waiting:
            if each.choices:
                take(room, each.choices[0])
        return max(
            (size for size, demand in self._sizes.items() if fitting(demand.choices, room)), default=None
        )

    def to_let_in(self, now: int) -> tuple[int, Demand] | None:
        """Return with how many replicas the gang, which has `now`, lets jobs in that wait, and the first of them.

        Between two sizes the gang holds nothing, so the jobs that wait are let in first, in their order. The gang keeps its size where
        they would leave less than its least number; where all that fit have room already; and for jobs of a lower priority.
        """
        waiting = [each for each in self._waiting if each.priority >= self._sizes[now].priority]
        room, let_in = dict(self._free), list[Demand]()
        for each in sorted(waiting, key=lambda each: (-each.priority, each.since)):
            taken = fitting(each.choices, room)
            if taken is not None:
                take(room, taken)
                let_in.append(each)
        sizes = (
            size
            for size in range(now, min(self._sizes) - 1, -1)
            if fitting(self._sizes[size].choices, room) is not None
        )
        size = next(sizes, now)
        return (size, let_in[0]) if let_in and size != now else None
