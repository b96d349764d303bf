"""Imports what every ``muster run`` needs, into a process that will fork for runs: no thread, no open database, no Dag.

So is Airflow's own execution API built, through which a task talks to Airflow. Both ends are one process of one release, so only
the API's newest version is there. The routes, and all that they do to the database, are Airflow's.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import muster
from muster.airflow.embedded.home import EmbeddedHome
from muster.airflow.upstream import internals
from muster.airflow.upstream.fields import made_when_used, read_when_asked
from muster.airflow.upstream.imports import no_aiohttp
from muster.airflow.upstream.threads import answer_without_threads
from muster.airflow.upstream.versions import serve_newest_only

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
    "muster.volumes.service.app",
)
_LEFT = ("commands", "routes", "__main__")
"""Modules of extensions that the command and the page import, whatever room they are in: the page's bring FastAPI, 0.4 CPU-s."""


@cache
def import_all(place: str) -> None:
    """Import every module of muster that a run may need: it waits for hours, and its checkout may be upgraded meanwhile.

    :param place: the package of the place where its jobs run.
    """
    others = [each for each in _OTHERS if each != place]
    for found in walk_packages(muster.__path__, "muster."):
        last = found.name.rpartition(".")[2]
        if last not in _LEFT and not f"{found.name}.".startswith(tuple(f"{each}." for each in others)):
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


@contextmanager
def no_collections() -> Iterator[None]:
    """Collect no garbage in the block: imports make objects that stay, and looking through them takes a fifth of the time.

    After it they are passed over by every collection, which would also copy their pages in a fork.
    """
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if before:
            gc.enable()
