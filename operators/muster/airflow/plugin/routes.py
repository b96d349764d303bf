"""All routes of the page: JSON under ``/muster/api``, and users' files under ``/muster/files``."""

from __future__ import annotations

from fastapi import APIRouter

from muster.airflow.plugin import (
    routes_jobs,
    routes_plan,
    routes_search,
    routes_serving,
    routes_upkeep,
    routes_volumes,
)
from muster.airflow.plugin.asked import Json

api = APIRouter(prefix="/api", default_response_class=Json)
for part in (routes_jobs, routes_search, routes_volumes, routes_serving, routes_plan, routes_upkeep):
    api.include_router(part.api)
documents = routes_volumes.documents
