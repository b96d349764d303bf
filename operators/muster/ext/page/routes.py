"""All routes of the page: JSON under ``/muster/api``, and users' files under ``/muster/files``."""

from __future__ import annotations

from fastapi import APIRouter

from muster.airflow.page.route import Json
from muster.core.extensions import extensions, load
from muster.ext.page import routes_jobs, routes_serving, routes_upkeep, routes_volumes

api = APIRouter(prefix="/api", default_response_class=Json)
for part in (routes_jobs, routes_volumes, routes_serving, routes_upkeep):
    api.include_router(part.api)
for extension in extensions().values():
    for place in extension.routes:
        api.include_router(load(place))
documents = routes_volumes.documents
