"""The page's routes of upkeep: images, what ended jobs keep, and what the store's last check found."""

from __future__ import annotations

from fastapi import APIRouter

from muster.airflow.page.access import Who, assets
from muster.airflow.page.route import Here, Json
from muster.ext.page import upkeep
from muster.ext.page.parts import Jobs

api = APIRouter(default_response_class=Json, dependencies=[assets])


@api.get("/images")
def images() -> Json:
    """Return every image that a Dag here may name: its lock, and whether it is built."""
    return Json(upkeep.images())


@api.get("/upkeep")
def kept(here: Here, jobs: Jobs, who: Who) -> Json:
    """Return the room of the store, its last check, and the files that ended jobs keep."""
    return Json(upkeep.upkeep(here.backend.store, jobs, permitted=who.may))
