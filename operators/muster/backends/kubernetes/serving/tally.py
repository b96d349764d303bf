"""Adds up what replicas have counted, so that one that died, or began anew, takes nothing back."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping

from muster.backends.releases.figures import added
from muster.core.deployment import Counts

Process = tuple[str, float]
"""One process that counts: its pod's uid, and when it came up."""


class Tally:
    """What was seen of every replica's counters last. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[str, dict[Process, Mapping[str, Counts]]] = {}

    def take(self, deployment: str, process: Process, counted: Mapping[str, Counts]) -> None:
        """Remember what a process has counted so far, by revision."""
        with self._lock:
            seen = self._seen.setdefault(deployment, {})
            if _all(seen.get(process, {})) <= _all(counted):  # two looks at once may end the other way round
                seen[process] = counted

    def totals(self, deployment: str, revisions: Collection[str]) -> dict[str, Counts]:
        """Return the sums of these revisions, and forget the others."""
        with self._lock:
            seen = self._seen.get(deployment, {})
            kept = {process: counted for process, counted in seen.items() if counted.keys() & set(revisions)}
            self._seen[deployment] = kept
            sums = added(kept.values())
        return {name: sums.get(name, Counts()) for name in revisions}


def _all(counted: Mapping[str, Counts]) -> int:
    return sum(counts.requests for counts in counted.values())
