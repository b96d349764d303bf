"""All routes of the page: JSON under ``/muster/api``, and users' files under ``/muster/files``."""

from __future__ import annotations

import logging

from fastapi import APIRouter

from muster.airflow.page.route import Json
from muster.core.extensions import problems, used
from muster.ext.page import routes_jobs, routes_serving, routes_upkeep, routes_volumes

log = logging.getLogger(__name__)
api = APIRouter(prefix="/api", default_response_class=Json)
for part in (routes_jobs, routes_volumes, routes_serving, routes_upkeep):
    api.include_router(part.api)
for router in used(lambda each: each.routes):
    api.include_router(router)
for problem in problems():
    log.warning("%s", problem)
documents = routes_volumes.documents
