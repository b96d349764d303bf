"""The page's deployments: each is read once a second at most, however many people watch, and now and then unwatched."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from muster.backends.releases.deployments import Deployments
from muster.backends.releases.figures import DeploymentSample, look
from muster.core.deployment import DeploymentStatus
from muster.core.wire import plain
from muster.ext.page.history import EVERY_SECONDS, History

_FRESH_SECONDS = 1.0
WINDOW_SECONDS = 15.0


@dataclass
class _Known:
    """Recent readings of one deployment: the last one is shown, the first is the base of recent figures."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    looks: list[tuple[float, DeploymentSample]] = field(default_factory=list)

    @property
    def stale(self) -> bool:
        """Whether it is time to read again."""
        return not self.looks or time.monotonic() - self.looks[-1][0] > _FRESH_SECONDS

    def note(self, seen: DeploymentSample) -> None:
        """Keep a reading."""
        now = time.monotonic()
        recent = [each for each in self.looks if each[0] > now - WINDOW_SECONDS]
        self.looks = [*recent, (now, seen)]


class Past:
    """The history of every deployment of a process; it outlives the store's connection. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, History] = {}
        self._noted = -EVERY_SECONDS

    def note(self, seen: list[DeploymentSample]) -> None:
        """Take a reading of every deployment, unless the last one was just now; forget those that are gone."""
        with self._lock:
            if time.monotonic() < self._noted + EVERY_SECONDS * 0.9:
                return
            self._noted = time.monotonic()
            at = time.time()
            self._known = {each.status.name: self._known.get(each.status.name, History()) for each in seen}
            for each in seen:
                self._known[each.status.name].note(at, each)

    def of(self, name: str) -> list[dict[str, Any]]:
        """Return the series of one deployment; empty before its second reading."""
        with self._lock:
            known = self._known.get(name)
            return known.series() if known else []


class Answering:
    """Every deployment of one backend. Any number of threads may ask."""

    def __init__(self, deployments: Deployments, past: Past | None = None) -> None:
        self._deployments = deployments
        self._known: dict[str, _Known] = defaultdict(_Known)
        self.past = past or Past()

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

    def remember(self) -> None:
        """Add a reading of every deployment to its history."""
        self.past.note([known.looks[-1][1] for known in self._looked()])

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
