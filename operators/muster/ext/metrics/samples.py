"""One value of a metric, and values counted by their size."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from muster.ext.metrics.table import NAMED

MINUTE, HOUR, DAY = 60.0, 3_600.0, 86_400.0
BOUNDS_SECONDS = (1.0, 5.0, 15.0, MINUTE, 5 * MINUTE, 15 * MINUTE, HOUR, 4 * HOUR, 12 * HOUR, DAY, 3 * DAY)
MOST_LABELS = 100
OTHER = "other"


@dataclass
class Durations:
    """A histogram of seconds: how many took at most each of :data:`BOUNDS_SECONDS`."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_SECONDS) + 1))
    sum_seconds: float = 0.0

    def observe(self, seconds: float) -> None:
        """Count one; a clock that went back makes it 0."""
        seconds = max(0.0, seconds)
        self.counts[bisect_left(BOUNDS_SECONDS, seconds)] += 1
        self.sum_seconds += seconds


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One value of a metric, with its labels."""

    metric: str
    value: float | Durations
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        wanted = NAMED[self.metric].labels
        assert self.labels.keys() == set(wanted), f"{self.metric} has the labels {wanted}, not {self.labels}"


def bounded(name: str, known: Collection[str]) -> str:
    """Return a label's value: a name, or `other` where there are too many already. :param known: those that there are."""
    return name if name in known or len(known) < MOST_LABELS else OTHER
