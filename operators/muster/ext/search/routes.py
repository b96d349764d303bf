"""The page's routes of searches: a list, one with its trials and their curves, and its end on request."""

from __future__ import annotations

from typing import Annotated, Any

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from fastapi import APIRouter, Depends, Query

from muster.airflow.page import audit
from muster.airflow.page.access import UserRights, Who, same_site
from muster.airflow.page.route import Here, Json, Limit, Name, Offset, Site, Text
from muster.airflow.page.task import task
from muster.core.errors import MusterError, SpecError
from muster.core.wire import plain
from muster.ext.search import trials
from muster.ext.search.driver import SearchDriver
from muster.ext.search.page import KnownSearch, KnownSearches, brief, described
from muster.ext.search.state import Phase
from muster.ext.search.trial_curves import TrialCurves

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
        audit.note(who.name, "muster_cancel_search", known.origin, search_id=search_id)
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
