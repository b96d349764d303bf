"""The page's deployments: each is read once a second, however many people watch."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from muster.backends.releases.deployments import Deployments
from muster.backends.releases.figures import Seen, look
from muster.core.deployment import DeploymentStatus
from muster.core.wire import plain

FRESH_SECONDS = 1.0
WINDOW_SECONDS = 15.0


@dataclass
class _Known:
    """Recent readings of one deployment: the last one is shown, the first is the base of recent figures."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    looks: list[tuple[float, Seen]] = field(default_factory=list)

    @property
    def stale(self) -> bool:
        """Whether it is time to read again."""
        return not self.looks or time.monotonic() - self.looks[-1][0] > FRESH_SECONDS

    def note(self, seen: Seen) -> None:
        """Keep a reading."""
        now = time.monotonic()
        recent = [each for each in self.looks if each[0] > now - WINDOW_SECONDS]
        self.looks = [*recent, (now, seen)]


class Answering:
    """Every deployment of one backend. Any number of threads may ask."""

    def __init__(self, deployments: Deployments) -> None:
        self._deployments = deployments
        self._known: dict[str, _Known] = defaultdict(_Known)

    def all(self) -> list[dict[str, Any]]:
        """Return every deployment, with its figures."""
        return [_document(known) for known in self._looked()]

    def one(self, name: str) -> dict[str, Any]:
        """Return one deployment. :raises NotFound: there is none."""
        known = self._known[name]
        with known.lock:  # other requests meanwhile get this reading
            if known.stale:
                known.note(look(self._deployments, name))
        return _document(known)

    def statuses(self) -> list[DeploymentStatus]:
        """Return the status of every deployment, at most a second old."""
        return [known.looks[-1][1].status for known in self._looked()]

    def _looked(self) -> list[_Known]:
        """What is known of every deployment that there is; of those that are gone it is forgotten."""
        known = {name: self._known[name] for name in self._deployments.names()}
        self._known = defaultdict(_Known, known)
        stale = [name for name, each in known.items() if each.stale]
        for seen in self._deployments.look_at(stale):
            known[seen.status.name].note(seen)
        return [each for each in known.values() if each.looks]


def _document(known: _Known) -> dict[str, Any]:
    """Return the status as JSON values, with figures since its start and of the last seconds."""
    (began, first), (ended, last) = known.looks[0], known.looks[-1]
    status: dict[str, Any] = plain(last.status)
    return {
        **status,
        "figures": plain(last.figures) if last.counts is not None else None,
        "lately": plain(last.after(first).figures) if ended > began else {},
        "lately_seconds": round(ended - began, 1),
    }
