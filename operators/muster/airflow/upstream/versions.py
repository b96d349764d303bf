"""Leaves the older versions of Airflow's execution API out: tasks here are of the server's own release.

A server speaks every version since 3.0, and spends four of the seven seconds of CPU before its first task on building them.
Inside a task's process each request of a stage would also look for its version, for 0.17 s a stage: there the API has none.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from muster.airflow.upstream import internals
from muster.airflow.upstream.fields import made_when_used
from muster.airflow.upstream.patch import Patch

PATCH = Patch(
    "cadwyn",
    ("7.0.",),
    4.0,
    "Cadwyn makes the routes of all versions at an app's start: make those of a version at its first request.",
)


@cache
def speak_newest_only() -> None:
    """Have the execution API that is built in this process from now on speak its newest version alone."""
    if PATCH.off:
        return
    from cadwyn import HeadVersion, Version, VersionBundle
    from cadwyn.route_generation import _DELETED_ROUTE_TAG

    from muster.airflow.upstream.internals import execution_api_router, versions

    before = versions.bundle
    newest = Version(before.versions[0].value)
    # Airflow 3.4 asks within its routes which version a request is of: by the same variable
    versions.bundle = VersionBundle(HeadVersion(), newest, api_version_var=before.api_version_var)
    routes = execution_api_router.routes
    routes[:] = [route for route in routes if _DELETED_ROUTE_TAG not in getattr(route, "tags", ())]


def serve_newest_only() -> None:
    """Have Airflow's in-process API be built of its newest routes, without Cadwyn, in this process, from now on."""
    if PATCH.off:
        return
    from muster.airflow.upstream.internals import app

    app.create_task_execution_api_app = _newest_only  # type: ignore[assignment]  # its one argument is enough


def _newest_only(lifespan: Any) -> Any:
    from fastapi import FastAPI

    from muster.airflow.upstream.internals import create_dag_bag, execution_api_router, init_error_handlers

    app = FastAPI(title="Airflow Task Execution API", lifespan=lifespan, openapi_url=None)
    with made_when_used():
        app.include_router(execution_api_router)
    app.add_middleware(_OfNewest)
    init_error_handlers(app)
    app.state.dag_bag = create_dag_bag()  # Airflow 3.3 adds its own later, 3.4 does not
    return app


class _OfNewest:
    """Says that a request is of the newest version, which Airflow 3.4 asks within its routes."""

    def __init__(self, app: Any) -> None:

        self._app, self._version = app, internals.versions.bundle.api_version_var

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self._version.set(None)
        await self._app(scope, receive, send)
