"""What Airflow loads of muster: the page under ``/muster`` and its entry in the navigation.

Airflow loads this in every one of its processes, so nothing heavy is imported here; the page itself
is built where it is asked for, in the api-server.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from airflow.plugins_manager import AirflowPlugin

PREFIX = "/muster"
ROUTE = "muster"


class MusterPlugin(AirflowPlugin):
    """What the entry point ``airflow.plugins`` names."""

    name = "muster"
    external_views = [  # noqa: RUF012 - Airflow declares it so, and takes views that it refuses out of it
        {"name": "Muster", "href": f"{PREFIX}/", "destination": "nav", "url_route": ROUTE}
    ]

    @cached_property
    def fastapi_apps(self) -> list[dict[str, Any]]:  # type: ignore[override]  # Airflow only reads it
        """The page; only the api-server asks for it."""
        from muster.airflow.plugin.app import create_app

        return [{"app": create_app(), "url_prefix": PREFIX, "name": "muster"}]
