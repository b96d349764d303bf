"""What answers predictions, as the page shows it: one look a second at each deployment, however many people watch."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from muster.backends.base import Backend
from muster.backends.releases.looking import Seen, look, look_at_all
from muster.core.deployment import DeploymentStatus
from muster.core.wire import plain

FRESH_SECONDS = 1.0
WINDOW_SECONDS = 15.0


@dataclass
class _Known:
    """The looks at one deployment that are kept: the last one is shown, the first is what lately began."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    looks: list[tuple[float, Seen]] = field(default_factory=list)


class Answering:
    """Every deployment of one backend. Any number of threads may ask."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._known: dict[str, _Known] = defaultdict(_Known)

    def all(self) -> list[dict[str, Any]]:
        """Every deployment that there is, with its figures."""
        names = self._backend.deployments()
        self._known = defaultdict(_Known, {name: self._known[name] for name in names})
        stale = [name for name in names if self._age(name) > FRESH_SECONDS]
        for seen in look_at_all(self._backend, stale):
            self._note(seen)
        return [_document(self._known[name]) for name in names if self._known[name].looks]

    def one(self, name: str) -> dict[str, Any]:
        """One deployment. :raises NotFound: there is none."""
        known = self._known[name]
        with known.lock:  # whoever comes meanwhile is shown what this look finds
            if self._age(name) > FRESH_SECONDS:
                self._note(look(self._backend, name))
        return _document(known)

    def statuses(self) -> list[DeploymentStatus]:
        """Every deployment as it was seen a moment ago."""
        self.all()
        return [known.looks[-1][1].status for known in self._known.values() if known.looks]

    def _age(self, name: str) -> float:
        looks = self._known[name].looks
        return time.monotonic() - looks[-1][0] if looks else float("inf")

    def _note(self, seen: Seen) -> None:
        now = time.monotonic()
        known = self._known[seen.status.name]
        recent = [each for each in known.looks if each[0] > now - WINDOW_SECONDS]
        known.looks = [*recent, (now, seen)]


def _document(known: _Known) -> dict[str, Any]:
    """The status as JSON values, the figures of all its time, and those of the last seconds."""
    (began, first), (ended, last) = known.looks[0], known.looks[-1]
    status: dict[str, Any] = plain(last.status)
    return {
        **status,
        "figures": plain(last.figures) if last.counts is not None else None,
        "lately": plain(last.after(first).figures) if ended > began else {},
        "lately_seconds": round(ended - began, 1),
    }
