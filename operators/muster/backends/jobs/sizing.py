"""How many replicas an elastic gang may have: pure, from what jobs compete for."""

from __future__ import annotations

from muster.backends.forecast import Demand, Outlook, fitting, take


class Sizing:
    """What is left for one elastic gang, whatever it holds itself.

    :param outlook: its `planned` are the gang with each number of replicas, from `least` on.
    :param job_id: the gang's, which is left out of what runs and waits.
    """

    def __init__(self, outlook: Outlook, *, job_id: str, least: int) -> None:
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
        """Return with how many replicas the gang, which has `now`, lets a job in that waits, and that job.

        The gang makes no room for a job of a lower priority. None where no job that waits would fit, and where one fits already.
        """
        waiting = [each for each in self._waiting if each.priority >= self._sizes[now].priority]
        for size in range(now, min(self._sizes) - 1, -1):
            room = dict(self._free)
            own = fitting(self._sizes[size].choices, room)
            if own is None:
                continue
            take(room, own)
            let_in = next((each for each in waiting if fitting(each.choices, room) is not None), None)
            if let_in is not None:
                return None if size == now else (size, let_in)
        return None
