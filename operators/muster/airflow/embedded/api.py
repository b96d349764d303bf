"""Airflow's own execution API inside this process, through which a task talks to Airflow.

Both ends are one process of one release, so only the API's newest version is built. The routes, and all that they do to the
database, are Airflow's.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module

from muster.airflow.embedded.collecting import no_collections
from muster.airflow.upstream import internals
from muster.airflow.upstream.fields import made_when_used, read_when_asked
from muster.airflow.upstream.imports import no_aiohttp
from muster.airflow.upstream.threads import answer_without_threads
from muster.airflow.upstream.versions import serve_newest_only


def import_routes() -> None:
    """Import Airflow's execution API, so that a fork of this process need not."""
    with no_collections(), no_aiohttp(), made_when_used(), read_when_asked():
        import_module("airflow.api_fastapi.execution_api.app")
        import_module("airflow.api_fastapi.execution_api.routes")


@cache
def build() -> None:
    """Build that API, so that a fork of this process need not; nothing serves it yet."""
    import_routes()
    with no_collections():
        serve_newest_only()
        answer_without_threads(internals.in_process_api_server().app)
