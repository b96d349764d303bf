"""Adds up what replicas have counted, so that one that died, or began anew, takes nothing back."""

from __future__ import annotations

import threading
from collections.abc import Collection

from muster.backends.counting import added
from muster.core.deployment import Counts

Counter = tuple[str, float]
"""One process that counts: its pod's uid, and when it came up."""


class Tally:
    """What was seen of every replica's counters last. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[str, dict[str, dict[Counter, Counts]]] = {}

    def take(self, deployment: str, revision: str, counter: Counter, counts: Counts) -> None:
        """Remember what a process has counted so far."""
        with self._lock:
            of_revision = self._seen.setdefault(deployment, {}).setdefault(revision, {})
            before = of_revision.get(counter)
            if (
                before is None or before.requests <= counts.requests
            ):  # two looks at once may end the other way round
                of_revision[counter] = counts

    def totals(self, deployment: str, revisions: Collection[str]) -> dict[str, Counts]:
        """Return the sums by revision, and forget the revisions that are not named."""
        with self._lock:
            kept = {name: self._seen.get(deployment, {}).get(name, {}) for name in revisions}
            self._seen[deployment] = kept
            return {name: added(counted.values()) for name, counted in kept.items()}
