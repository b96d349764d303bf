"""The route of the tab."""

from __future__ import annotations

from fastapi import APIRouter

from muster.airflow.page.access import assets
from muster.airflow.page.route import Here, Json

api = APIRouter(dependencies=[assets])


@api.get("/counts")
def counts(here: Here) -> Json:
    """Return the number of versions of each volume."""
    store = here.backend.store
    return Json({name: len(store.newest(name, limit=100)) for name in store.volumes()})
