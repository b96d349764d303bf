"""Every search of one store, as the page knows it: of each only the events that are new are read."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import Any

from muster.airflow.page.task import UNREADABLE, task
from muster.core.errors import Corrupt, MusterError, NotFound, SpecError
from muster.core.names import check_job_id
from muster.core.origin import Origin
from muster.core.search import Search
from muster.core.wire import plain
from muster.ext.search.importance import Importance, importance
from muster.ext.search.overview import SearchOverview, overview, waits
from muster.ext.search.state import SearchState
from muster.ext.search.trials import cut, shown
from muster.volumes.protocols import Searches as Stored

MOST_KNOWN = 32
"""Searches whose trials are kept in memory; 10,000 trials are about 20 MB."""


_FACTS = ("sampler", "stopping", "seed", "at_once", "retries", "resource_name", "earlier")


@dataclass(frozen=True, kw_only=True)
class KnownSearch:
    """A search as its newest event left it. :param end: where its events end; another end is another standing."""

    search: Search
    overview: SearchOverview
    importance: tuple[Importance, ...]
    end: int

    @property
    def origin(self) -> Origin:
        """The task that searches."""
        return self.search.trial.origin


@dataclass(frozen=True, kw_only=True)
class SearchHead:
    """A search of which only what it looks for was read; `error` says why not even that can be."""

    search_id: str
    search: Search | None = None
    error: str = ""

    @property
    def origin(self) -> Origin:
        """The task that searches; of one that cannot be read it is not known."""
        return self.search.trial.origin if self.search else Origin()


@dataclass(eq=False)
class _Reading:
    """What was read of one search."""

    state: SearchState
    lock: threading.Lock = field(default_factory=threading.Lock)
    end: int = 0
    known: KnownSearch | None = None


def brief(found: SearchOverview) -> dict[str, Any]:
    """Return a search in short, as JSON values. Times are seconds since the epoch."""
    best = found.best_row
    return {
        "search_id": found.search_id,
        "state": found.state.value,
        "error": "",
        "dag_id": found.dag_id,
        "run_id": found.run_id,
        "stage": found.stage,
        "began": found.began,
        "ended": found.ended,
        "metric": found.metric,
        "mode": found.mode,
        "trials": len(found.trials),
        "most": found.most,
        "running": found.running,
        "failed": found.failed,
        "reason": found.reason,
        "waits": found.waits,
        "best": best and {"trial": best.trial, "value": best.value, "params": shown(best.params)},
    }


def described(known: KnownSearch) -> dict[str, Any]:
    """Return everything that the page shows of one search but its trials, as JSON values."""
    found = known.overview
    return {
        **brief(found),
        **task(known.origin),
        **{name: plain(getattr(found, name)) for name in _FACTS},
        "until": known.search.spec.until,
        "space": {name: cut(text) for name, text in found.space.items()},
        "budget": dict(found.budget),
        "resource": found.resource,
        "rungs": plain(found.rungs),
        "importance": plain(known.importance),
        "version": known.end,
    }


class KnownSearches:
    """The searches of one store. Any number of threads may ask."""

    def __init__(self, store: Stored) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._heads: dict[str, Search] = {}
        self._readings: OrderedDict[str, _Reading] = OrderedDict()
        self._ended: dict[str, dict[str, Any]] = {}  # lines of the list

    def heads(self) -> list[SearchHead]:
        """Return every search, newest first."""
        names = self._store.searches()
        with self._lock:
            self._heads = {name: self._heads[name] for name in names if name in self._heads}
            self._ended = {name: self._ended[name] for name in names if name in self._ended}
        found = []
        for name in names:
            try:
                found.append(SearchHead(search_id=name, search=self._head(name)))
            except NotFound:  # gc deletes it
                continue
            except MusterError as error:  # an error is shown with the search
                found.append(SearchHead(search_id=name, error=str(error)))
        return found

    def of(self, search_id: str) -> KnownSearch:
        """Return one search as it is now. :raises NotFound: there is none. :raises Corrupt: it cannot be read."""
        reading = self._reading(check_job_id(search_id))
        with reading.lock:  # other requests meanwhile get this one's reading
            try:
                self._read(search_id, reading)
            except BaseException as error:
                with self._lock:
                    self._readings.pop(search_id, None)  # what it knows ends somewhere within a page
                if isinstance(error, SpecError):
                    raise Corrupt(f"search {search_id}: its events contradict each other: {error}") from error
                raise
            search, state = self._head(search_id), reading.state
            if reading.known is None or reading.known.end != reading.end:
                reading.known = KnownSearch(
                    search=search,
                    overview=overview(search_id, search, state),
                    importance=importance(search.spec, state.trials),
                    end=reading.end,
                )
            return replace(
                reading.known, overview=replace(reading.known.overview, waits=waits(search, state))
            )

    def brief(self, head: SearchHead) -> dict[str, Any]:
        """Return one line of the list, as JSON values; of a search that has ended nothing is read twice."""
        if (ended := self._ended.get(head.search_id)) is not None:
            return ended
        try:
            line = brief(self.of(head.search_id).overview)
        except MusterError as error:
            return {"search_id": head.search_id, "state": UNREADABLE, "error": str(error)}
        if line["ended"] is not None and not line["running"]:
            self._ended[head.search_id] = line
        return line

    def _read(self, search_id: str, reading: _Reading) -> None:
        while (page := self._store.search_events(search_id, after=reading.end)).events:
            for event in page.events:
                reading.state.apply(event)
            reading.end = page.end

    def _head(self, search_id: str) -> Search:
        if (known := self._heads.get(search_id)) is None:
            known = self._heads[search_id] = self._store.search(search_id)
        return known

    def _reading(self, search_id: str) -> _Reading:
        search = self._head(search_id)
        with self._lock:
            reading = self._readings.setdefault(search_id, _Reading(SearchState(search.spec)))
            self._readings.move_to_end(search_id)
            while len(self._readings) > MOST_KNOWN:
                self._readings.popitem(last=False)
        return reading
