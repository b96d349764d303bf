"""Airflow's own execution API inside this process, without its older versions.

A task talks to Airflow through this API. Airflow's server for it speaks every version since 3.0 and
spends seconds at its first request on building them; here both ends are one process of one release,
so only the newest is built. The routes, and all that they do to the database, are Airflow's.

A server hands each function of a request to a thread, so that others are answered meanwhile. Here the one client
waits, and the three or four threads of a request cost more than what they do: the functions are called where they are.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib import import_module
from typing import Any

from muster.airflow.embedded.collecting import no_collections
from muster.airflow.embedded.fields import made_when_used, read_when_asked

_answering: ContextVar[bool] = ContextVar("_answering", default=False)


def import_routes() -> None:
    """Import Airflow's execution API, so that a fork of this process need not."""
    with no_collections(), left_out("svcs.aiohttp"), made_when_used(), read_when_asked():
        import_module("airflow.api_fastapi.execution_api.app")
        import_module("airflow.api_fastapi.execution_api.routes")


def serve_newest_only() -> None:
    """Let Airflow's in-process API be built without its older versions, in this process, from now on."""
    from airflow.api_fastapi.execution_api import app

    app.create_task_execution_api_app = _newest_only  # type: ignore[assignment]  # its one argument is enough


@cache
def build() -> None:
    """Build that API, so that a fork of this process need not; nothing serves it yet."""
    import_routes()
    with no_collections():
        from airflow.sdk.execution_time.supervisor import in_process_api_server

        serve_newest_only()
        _answer_without_threads()
        built = in_process_api_server().app
        built.middleware_stack = _Answering(built.middleware_stack or built.build_middleware_stack())


@contextmanager
def left_out(name: str) -> Iterator[None]:
    """Have nothing import a module in the block: svcs imports each web framework that it could serve, Airflow's is FastAPI."""
    before = name in sys.modules
    sys.modules.setdefault(name, None)  # type: ignore[arg-type]  # the import system's own way to say so
    try:
        yield
    finally:
        if not before:
            del sys.modules[name]


def _newest_only(lifespan: Any) -> Any:
    from airflow.api_fastapi.common.dagbag import create_dag_bag
    from airflow.api_fastapi.common.exceptions import init_error_handlers
    from airflow.api_fastapi.execution_api.routes import execution_api_router
    from fastapi import FastAPI

    app = FastAPI(title="Airflow Task Execution API", lifespan=lifespan, openapi_url=None)
    with made_when_used():
        app.include_router(execution_api_router)
    init_error_handlers(app)
    app.state.dag_bag = create_dag_bag()  # Airflow 3.3 adds its own later, 3.4 does not
    return app


class _Answering:
    """Marks what belongs to a request of this API: the author's own code may use anyio, too.

    And that it is of the newest version, which Airflow 3.4 asks within its routes.
    """

    def __init__(self, app: Any) -> None:
        from airflow.api_fastapi.execution_api.versions import bundle

        self._app, self._version = app, bundle.api_version_var

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        _answering.set(True)
        self._version.set(None)
        await self._app(scope, receive, send)


@cache
def _answer_without_threads() -> None:
    """Have requests of this API call their functions on its own thread, in this process, from now on."""
    import anyio.to_thread
    from airflow.sdk.execution_time import task_runner

    in_a_thread = anyio.to_thread.run_sync

    async def run_sync(func: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        # Airflow takes the way to this API away while it is asked. Where that is there, a function might ask in
        # its turn, and would wait for its own thread.
        asks_no_more = getattr(task_runner, "SUPERVISOR_COMMS", None) is None
        if _answering.get() and asks_no_more:
            return func(*arguments)
        return await in_a_thread(func, *arguments, **options)

    anyio.to_thread.run_sync = run_sync  # type: ignore[assignment]  # FastAPI and Starlette ask for it here
