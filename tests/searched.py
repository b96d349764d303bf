"""Searches for tests to look at: played without jobs, or told event by event, in any store."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from muster.core.data import OutputTarget
from muster.core.job import JobSpec, Role
from muster.core.origin import Origin
from muster.ext.search.simulation import Played, play
from muster.ext.search.space import choice, loguniform, uniform
from muster.ext.search.spec import Event, EventKind, Search, SearchSpec
from muster.ext.search.stored import begin_search, event_pages, tell_search
from muster.volumes.protocols import EventLogs

SPACE = {
    "rate": loguniform(1e-4, 1e-1),
    "optimizer": choice("adam", "sgd"),
    "momentum": uniform(0, 1).when(optimizer="sgd"),
}
SPEC = SearchSpec(space=SPACE, metric="auc", trials=27, rungs=(1, 3, 9), seed=5, until="epochs")
EVENTS_AT_ONCE = 2000


def curve(params: Mapping[str, Any], epoch: float) -> float | None:
    """Best at a rate of 0.01; NaN above 0.09."""
    if params["rate"] > 0.09:
        return None
    quality = 1 - abs(math.log10(params["rate"]) + 2) / 4
    return (quality + 0.02 * params.get("momentum", 0)) * (1 - math.exp(-epoch / 4))


def search_of(spec: SearchSpec = SPEC, *, dag_id: str = "flights", run_id: str = "manual__1") -> Search:
    """A search that began at the second 1."""
    trial = JobSpec(
        name=f"{dag_id}.search",
        image="python",
        image_digest="b3:" + "0" * 64,
        roles=(Role(command=("true",)),),
        params={**dict.fromkeys(spec.space, 0), **({spec.until: 1} if spec.until else {})},
        outputs={"model": OutputTarget(volume="flights/model-trials")},
        priority="low",
        origin=Origin(instance="test", dag_id=dag_id, run_id=run_id, task_id="search"),
    )
    return Search(spec=spec, trial=trial, began=1.0)


def begin(store: EventLogs, search_id: str, spec: SearchSpec = SPEC, **more: Any) -> None:
    """Enter a search that has no event yet. `more` goes to :func:`search_of`."""
    begin_search(store, search_id, search_of(spec, **more))


def tell(store: EventLogs, search_id: str, events: Iterable[Event], *, after: int = 0) -> int:
    """Write events down; return where they end."""
    told = list(events)
    for first in range(0, len(told), EVENTS_AT_ONCE):
        after = tell_search(store, search_id, told[first : first + EVENTS_AT_ONCE], after=after)
    return after


def events(store: EventLogs, search_id: str) -> list[Event]:
    """All that has happened in a search."""
    return [each for page in event_pages(store, search_id) for each in page.events]


def played(
    store: EventLogs, search_id: str, spec: SearchSpec = SPEC, *, workers: int = 4, **more: Any
) -> Played:
    """Play a search to its end, and write it down. `more` goes to :func:`begin`."""
    begin(store, search_id, spec, **more)
    found = play(spec, curve, workers=workers)
    tell(store, search_id, found.events)
    return found


def event(what: EventKind, trial: int = -1, **fields: Any) -> Event:
    """One event, at the second 2."""
    return Event(what=what, at=2.0, trial=trial, **fields)


def running(params: Mapping[str, Any], *, trial: int = 0, job_id: str = "") -> list[Event]:
    """What begins a trial."""
    return [
        event(EventKind.ASKED, trial, params=params),
        event(EventKind.STARTED, trial, job_id=job_id or f"trial-{trial}-1", rung=0),
    ]


def failed(params: Mapping[str, Any], *, trial: int = 0, reason: str = "it raises") -> list[Event]:
    """A trial whose job failed for good."""
    return [*running(params, trial=trial), event(EventKind.FAILED, trial, reason=reason, final=True)]


def of(spec: SearchSpec = SPEC, **changes: Any) -> SearchSpec:
    """The spec with other fields."""
    return replace(spec, **changes)
