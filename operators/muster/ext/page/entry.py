"""The plugin that Airflow loads: the page under ``/muster`` and its entry in the navigation.

Airflow loads this in every one of its processes, so nothing heavy is imported here; the page itself
is built where it is asked for, in the api-server. ``[muster] plugin = False`` turns all of it off.
"""

from __future__ import annotations

from functools import cached_property
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

from airflow.plugins_manager import AirflowPlugin

from muster.airflow.upstream.internals import conf

PREFIX = "/muster"
# Airflow's UI uses the address unchanged, so below a proxy's path it must hold that path.
_ENABLED = conf.getboolean("muster", "plugin", fallback=True)
ROOT = urlsplit(conf.get("api", "base_url", fallback="")).path.rstrip("/") + PREFIX


class MusterPlugin(AirflowPlugin):
    """The plugin, named by the entry point ``airflow.plugins``."""

    name = "muster"
    external_views = [
        {
            "name": "Muster",
            "href": f"{ROOT}/",
            "icon": f"{ROOT}/static/mark.svg",
            "destination": "nav",
            "url_route": "muster",
        }
    ] * _ENABLED

    @cached_property
    def fastapi_apps(self) -> list[dict[str, Any]]:  # type: ignore[override]  # Airflow only reads it
        """The page; only the api-server reads this."""
        if not _ENABLED:
            return []
        from muster.ext.page.app import create_app

        return [{"app": create_app(), "url_prefix": PREFIX, "name": "muster"}]

    @cached_property
    def listeners(self) -> list[ModuleType | object]:  # type: ignore[override]  # Airflow only reads it
        """The listener for starts of Airflow's components."""
        if not _ENABLED:
            return []
        from muster.airflow.attempts import listener

        return [listener]
