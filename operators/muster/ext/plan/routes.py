"""The page's routes of plans: which Dags a user may trigger, and what a run of one would do."""

from __future__ import annotations

import json
from typing import Annotated, Any

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from fastapi import APIRouter, Depends, Query

from muster.airflow.page.access import Who, same_site
from muster.airflow.page.route import Json, Name
from muster.core.errors import SpecError
from muster.ext.plan import page as planning

api = APIRouter(default_response_class=Json)

Given = Annotated[str, Query(max_length=8000)]


@api.get("/dags")
def dags(who: Who) -> Json:
    """Return the Dags that the user may trigger, and why no run of them can be planned here, if so."""
    mine = [dag_id for dag_id in planning.dags() if who.may(dag_id, DagAccessEntity.RUN, method="POST")]
    return Json({"dags": mine, "why_not": planning.why_not()})


@api.post("/plan", dependencies=[Depends(same_site)])
def plan(who: Who, dag: Name, params: Given = "{}") -> Json:
    """Return what a run of a Dag would do now; it needs the right to trigger it.

    :param params: an object as JSON; its values may be texts, as on the command line.
    """
    who.need(dag, DagAccessEntity.RUN, method="POST")
    return Json(planning.plan(dag, _read(params)))


def _read(text: str) -> dict[str, Any]:
    try:
        given = json.loads(text)
    except ValueError as error:
        raise SpecError(f"params is {text!r:.80}: need an object as JSON") from error
    if not isinstance(given, dict):
        raise SpecError(f"params is {text!r:.80}: need an object as JSON")
    return given
