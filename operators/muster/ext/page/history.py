"""What deployments answered over time: readings of their counters, fine for an hour and coarse for two days.

Counters are kept, not figures: those of neighbouring intervals can be added, and a percentile of the sum is right.
It is in the memory of one api-server: a restart begins it anew. Prometheus keeps what must last.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from muster.backends.releases.figures import DeploymentSample, Figures, added
from muster.core.deployment import Counts
from muster.core.wire import plain

EVERY_SECONDS = 15.0
COARSE = 20
"""Fine intervals in a coarse one: five minutes."""

MOST_FINE = 240
MOST_COARSE = 576


@dataclass(frozen=True)
class Interval:
    """What each revision answered between two times, in seconds since the epoch."""

    began: float
    ended: float
    counts: Mapping[str, Counts]


class History:
    """The intervals of one deployment, oldest first. Not safe to share between threads."""

    def __init__(self) -> None:
        self._coarse: list[Interval] = []
        self._fine: list[Interval] = []
        self._last: tuple[float, DeploymentSample] | None = None

    def note(self, at: float, seen: DeploymentSample) -> None:
        """Take a reading of the counters. One that could not be had leaves a gap."""
        if seen.counts is None:
            self._last = None
            return
        if self._last is not None:
            began, before = self._last
            self._fine.append(Interval(began, at, seen.after(before).counts or {}))
        self._last = (at, seen)
        if len(self._fine) >= MOST_FINE + COARSE:
            self._coarse.append(_joined(self._fine[:COARSE]))
            del self._fine[:COARSE]
            del self._coarse[:-MOST_COARSE]

    def series(self) -> list[dict[str, Any]]:
        """Return each interval's end and length in seconds, and by revision its figures."""
        return [
            {
                "at": each.ended,
                "seconds": each.ended - each.began,
                "figures": {name: plain(Figures.of(counts)) for name, counts in each.counts.items()},
            }
            for each in (*self._coarse, *self._fine)
        ]


def _joined(several: list[Interval]) -> Interval:
    return Interval(several[0].began, several[-1].ended, added(each.counts for each in several))
