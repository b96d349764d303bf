"""The page's deployments: each is read once a second at most, however many people watch, and now and then unwatched."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import Depends

from muster.airflow.page.route import Here, Opening
from muster.backends.releases.deployments import Deployments
from muster.backends.releases.figures import DeploymentSample, Figures, added, look
from muster.core.deployment import Counts, DeploymentStatus
from muster.core.errors import MusterError
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


def _answering(here: Here) -> Answering:
    return here.part(Answering)


Served = Annotated[Answering, Depends(_answering)]
"""What a route takes that asks for deployments."""


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


class CounterSampling:
    """Reads every deployment's counters every 15 seconds, from the first request of the page on."""

    def __init__(self, opening: Opening, *, seconds: float = EVERY_SECONDS) -> None:
        self._opening = opening
        self._seconds = seconds
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._over = threading.Event()

    def begin(self) -> None:
        """Start the thread; idempotent."""
        if self._thread is not None:
            return
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._sample, name="muster-deployments", daemon=True)
                self._thread.start()

    def end(self) -> None:
        """Stop the thread, and wait for it."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _sample(self) -> None:
        while not self._over.wait(self._seconds):
            # What is away leaves a gap in the curves; the page itself says why.
            with suppress(MusterError, OSError), self._opening.lent() as site:
                site.part(Answering).remember()
