"""The page's routes of searches: a list, one with its trials and their curves, and its end on request."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query

from muster.airflow.page.access import UserRights, Who, same_site
from muster.airflow.page.route import UNREADABLE, Here, Json, Limit, Name, Offset, Site, Text, task
from muster.airflow.upstream.internals import DagAccessEntity
from muster.core.errors import Corrupt, MusterError, NotFound, SpecError
from muster.core.names import check_job_id
from muster.core.origin import Origin
from muster.core.wire import plain
from muster.ext.search import trials
from muster.ext.search.driver import SearchDriver
from muster.ext.search.importance import Importance, importance
from muster.ext.search.overview import SearchOverview, TrialRow, overview, waits
from muster.ext.search.results import curve
from muster.ext.search.spec import Search
from muster.ext.search.state import Phase, SearchState
from muster.ext.search.stored import KIND, event_pages, stored_search
from muster.ext.search.trials import MOST_CURVES, cut, drawn, shown
from muster.volumes.protocols import EventLogs, Ledger

MOST_KNOWN = 32
"""Searches whose trials are kept in memory; 10,000 trials are about 20 MB."""


_BRIEF = (
    *("search_id", "dag_id", "run_id", "stage", "began", "ended", "metric", "mode"),
    *("most", "running", "failed", "reason", "waits"),
)
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
        **{name: getattr(found, name) for name in _BRIEF},
        "state": found.state.value,
        "error": "",
        "trials": len(found.trials),
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

    def __init__(self, store: EventLogs) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._heads: dict[str, Search] = {}
        self._reading = lru_cache(MOST_KNOWN)(self._begun)
        self._ended: dict[str, dict[str, Any]] = {}  # lines of the list

    def heads(self) -> list[SearchHead]:
        """Return every search, newest first."""
        names = self._store.logs(KIND)
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
                reading.state, reading.end = (
                    SearchState(reading.state.spec),
                    0,
                )  # it ended somewhere within a page
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
        for page in event_pages(self._store, search_id, after=reading.end):
            for event in page.events:
                reading.state.apply(event)
            reading.end = page.end

    def _head(self, search_id: str) -> Search:
        if (known := self._heads.get(search_id)) is None:
            known = self._heads[search_id] = stored_search(self._store, search_id)
        return known

    def _begun(self, search_id: str) -> _Reading:
        return _Reading(SearchState(self._head(search_id).spec))


MOST_POINTS = 200
"""Of one trial."""
_MOST_KEPT = 2000
"""Curves of jobs that have ended and are kept in memory."""

Points = list[tuple[float, float]]


class TrialCurves:
    """The curves of the jobs of one ledger. Safe to share between threads."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._ended = lru_cache(_MOST_KEPT)(self._job)

    def of(self, found: SearchOverview, *, told: bool) -> dict[str, Any]:
        """Return the curves of the trials that are drawn, the best trial's first.

        :param told: whether the user may see what jobs print; else a curve has what the search itself knows, its rungs.
        """
        trials = [each for each in found.trials if each.values or each.phase is Phase.RUNNING]
        chosen = sorted(drawn(trials, MOST_CURVES), key=lambda each: each.trial != found.best)
        curves = [self._curve(found, each, told=told) for each in chosen]
        return {
            "curves": [each for each in curves if each["points"]],
            "chosen": len(chosen),
            "of": len(trials),
            "told": told,
        }

    def _curve(self, found: SearchOverview, trial: TrialRow, *, told: bool) -> dict[str, Any]:
        known = dict(self._told(found, trial)) if told else {}
        rungs = zip((each.at for each in found.rungs), trial.values, strict=False)
        known |= {at: value for at, value in rungs if value is not None and at not in known}
        points = sorted(known.items())
        step = max(1, -(-len(points) // MOST_POINTS))
        kept = points[::step] if step == 1 or points[-1] in points[::step] else [*points[::step], points[-1]]
        return {"trial": trial.trial, "phase": trial.phase.value, "points": kept}

    def _told(self, found: SearchOverview, trial: TrialRow) -> Points:
        """What the jobs of a trial told, of those that begin again from a checkpoint the later one."""
        last = len(trial.jobs) - 1
        return [
            point
            for place, job_id in enumerate(trial.jobs)
            for point in (
                self._job(job_id, found.metric)
                if place == last and trial.phase is Phase.RUNNING
                else self._ended(job_id, found.metric)
            )
        ]

    def _job(self, job_id: str, metric: str) -> Points:
        try:
            return list(curve(self._ledger, job_id, metric))
        except MusterError:  # its rungs are known nevertheless
            return []


api = APIRouter(default_response_class=Json)

_MOST_AXES = 8
ROWS = 20

Names = Annotated[list[str] | None, Query(max_length=_MOST_AXES)]
PhaseName = Annotated[str, Query(pattern=f"^({'|'.join(phase.value for phase in Phase)})?$")]


@api.get("/searches")
def searches(
    here: Here, who: Who, dag: Name = "", run: Name = "", offset: Offset = 0, limit: Limit = ROWS
) -> Json:
    """Return the searches that the user may see, newest first."""
    known = _known(here)
    mine = [head for head in known.heads() if who.may(head.origin.dag_id)]
    found = [head for head in mine if dag in ("", head.origin.dag_id) and run in ("", head.origin.run_id)]
    lines = [{**known.brief(head), **task(head.origin)} for head in found[offset : offset + limit]]
    dags = sorted({head.origin.dag_id for head in mine if head.origin.dag_id})
    return Json({"searches": lines, "total": len(found), "dags": dags})


@api.get("/searches/{search_id}")
def search(here: Here, who: Who, search_id: str) -> Json:
    """Return one search without its trials, and the user's rights on it."""
    known = _search(here, who, search_id)
    return Json(
        {
            **described(known),
            "made": _made(here, known),
            "may": {
                "cancel": known.overview.ended is None and who.may(known.origin.dag_id, method="PUT"),
                "log": _told(who, known),
            },
        }
    )


@api.get("/searches/{search_id}/trials")
def all_trials(
    here: Here,
    who: Who,
    search_id: str,
    sort: Text = "value",
    down: bool = False,
    phase: PhaseName = "",
    offset: Offset = 0,
    limit: Limit = 50,
) -> Json:
    """Return some trials of a search, with what those that run do now and what they have."""
    found = _search(here, who, search_id).overview
    rows, counts = trials.page(found, sort=sort, down=down, phase=phase, offset=offset, limit=limit)
    live = [each.jobs[-1] for each in rows if each.phase is Phase.RUNNING and each.jobs]
    statuses = here.backend.statuses(live) if live else {}
    held, unseen = _held(here, live)
    shown = [
        {
            **trials.row(each),
            "now": trials.doing(statuses.get(each.jobs[-1])) if each.jobs else None,
            "held": [plain(one) for one in held.get(each.jobs[-1], ())] if each.jobs else [],
        }
        for each in rows
    ]
    return Json({"trials": shown, **counts, "unseen": unseen})


@api.get("/searches/{search_id}/points")
def points(here: Here, who: Who, search_id: str, param: Names = None) -> Json:
    """Return the params and values of the trials for a picture, over the params that matter most or those that are named."""
    known = _search(here, who, search_id)
    space = known.search.spec.space
    if unknown := [name for name in param or () if name not in space]:
        raise SpecError(f"param is {unknown[0]!r:.60}: the space has {', '.join(space)}")
    names = param or [each.param for each in known.importance][:_MOST_AXES]
    return Json(trials.points(known.overview, space, names))


@api.get("/searches/{search_id}/curves")
def curves(here: Here, who: Who, search_id: str) -> Json:
    """Return the curves of the trials; of one who may not see what jobs print, only what the search knows."""
    known = _search(here, who, search_id)
    return Json(here.part(TrialCurves, here.backend.store.ledger).of(known.overview, told=_told(who, known)))


@api.post("/searches/{search_id}/cancel", dependencies=[Depends(same_site)])
def cancel(here: Here, who: Who, search_id: str) -> Json:
    """End a search and its trials: their ranks get time to save, and Airflow's audit log says who asked."""
    known = _search(here, who, search_id)
    who.need(known.origin.dag_id, DagAccessEntity.TASK_INSTANCE, method="PUT")
    if known.overview.ended is None:
        who.note("muster_cancel_search", known.origin, search_id=search_id)
        SearchDriver(here.backend, search_id).cancel(f"{who.name} cancelled it on muster's page in Airflow")
    return Json(brief(_known(here).of(search_id).overview))


def _known(here: Site) -> KnownSearches:
    return here.part(KnownSearches, here.backend.store)


def _search(here: Site, who: UserRights, search_id: str) -> KnownSearch:
    known = _known(here).of(search_id)
    who.need(known.origin.dag_id, DagAccessEntity.TASK_INSTANCE)
    return known


def _told(who: UserRights, known: KnownSearch) -> bool:
    return who.may(known.origin.dag_id, DagAccessEntity.TASK_LOGS)


def _held(here: Site, jobs: list[str]) -> tuple[dict[str, Any], str]:
    """What each job has, and why that is not known."""
    try:
        return dict(here.capacity.held(jobs)) if jobs else {}, ""
    except MusterError as error:  # the trials are shown all the same
        return {}, str(error)


def _made(here: Site, known: KnownSearch) -> dict[str, Any]:
    """Return what the best trial's job told and made, and the versions that the task has of it."""
    best = known.overview.best_row
    if best is None or not best.jobs:
        return {"job_id": "", "metrics": {}, "outputs": {}, "kept": {}}
    ledger = here.backend.store.ledger
    try:
        result = ledger.status(best.jobs[-1]).result
    except MusterError:  # gc deleted it
        result = None
    origin = known.origin
    ends = (
        ledger.task_ends(dag_id=origin.dag_id, run_id=origin.run_id, runs=1) if known.overview.ended else []
    )
    mine = [end for end in ends if end.origin.stage == origin.stage and end.outputs]
    return {
        "job_id": best.jobs[-1],
        "metrics": dict(result.metrics) if result else {},
        "outputs": {name: list(each) for name, each in result.outputs.items()} if result else {},
        "kept": {name: list(each) for name, each in mine[0].outputs.items()} if mine else {},
    }
