"""Leaves the older versions of Airflow's execution API out: tasks here are of the server's own release.

A server speaks every version since 3.0, and spends four of the seven seconds of CPU before its first task on building them.
"""

from __future__ import annotations

from functools import cache

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
    from airflow.api_fastapi.execution_api import versions
    from airflow.api_fastapi.execution_api.routes import execution_api_router
    from cadwyn import HeadVersion, Version, VersionBundle
    from cadwyn.route_generation import _DELETED_ROUTE_TAG

    before = versions.bundle
    newest = Version(before.versions[0].value)
    # Airflow 3.4 asks within its routes which version a request is of: by the same variable
    versions.bundle = VersionBundle(HeadVersion(), newest, api_version_var=before.api_version_var)
    routes = execution_api_router.routes
    routes[:] = [route for route in routes if _DELETED_ROUTE_TAG not in getattr(route, "tags", ())]
