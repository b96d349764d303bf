"""Imports what every ``muster run`` needs, into a process that will fork for runs: no thread, no open database, no Dag."""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import muster
from muster.airflow.embedded.collecting import no_collections
from muster.airflow.embedded.home import EmbeddedHome

SHARED = (
    "airflow.dag_processing.bundles.local",
    "airflow.dag_processing.collection",
    "airflow.sdk.execution_time.supervisor",
    "airflow.sdk.execution_time.task_runner",
    "airflow.serialization.definitions.mappedoperator",
    "anyio._backends._asyncio",
    "anyio.streams.tls",
    "encodings.idna",
    "jinja2.ext",
    "muster.airflow.attempts.listener",
    "muster.airflow.operators.deploy",
    "muster.airflow.operators.gate",
    "muster.airflow.operators.job",
    "muster.airflow.operators.validate",
    "muster.ext.page.entry",
)
"""What a run, and two or more of Airflow's own processes, import at their start or at their first task."""
# What else a run imports of others when it needs it, from its first line to the end of its first job.
_MODULES = (
    "airflow.models.pool",
    "airflow.models.task_state_store",
    "airflow.providers.standard.operators.trigger_dagrun",
    "airflow.providers.standard.sensors.external_task",
    "a2wsgi",
)


# Rooms that no process of a run imports: other programs, and Airflow's components.
_OTHERS = (
    "muster.airflow.page",
    "muster.ext.page",
    "muster.ext.up",
    "muster.cli",
    "muster.worker",
    "muster.backends.kubernetes",
)


@cache
def import_all(place: str) -> None:
    """Import every module of muster that a run may need: it waits for hours, and its checkout may be upgraded meanwhile.

    :param place: the package of the place where its jobs run.
    """
    others = [each for each in _OTHERS if each != place]
    for found in walk_packages(muster.__path__, "muster."):
        if not f"{found.name}.".startswith(tuple(f"{each}." for each in others)) and "__" not in found.name:
            import_module(found.name)


def preload(home: EmbeddedHome) -> None:
    """Make this process the home's Airflow, for good, with all that a run needs imported and built."""
    with no_collections():
        home.enter()
        for name in (*SHARED, *_MODULES):
            import_module(name)
        from muster.airflow.site import open_place

        import_all(open_place(home.settings).package)
        from sqlalchemy.orm import configure_mappers

        from muster.airflow.embedded.api import build
        from muster.airflow.upstream.internals import conf, get_stats_factory, initialize

        # As each of Airflow's own processes does; without it, a run would read the table of old names.
        old_names = conf.getboolean("metrics", "legacy_names_on")
        initialize(factory=get_stats_factory(), export_legacy_names=old_names)
        configure_mappers()
        build()


def sources() -> set[Path]:
    """Return the files of all imported modules."""
    specs = (getattr(module, "__spec__", None) for module in list(sys.modules.values()))
    return {Path(spec.origin) for spec in specs if spec is not None and spec.has_location and spec.origin}
