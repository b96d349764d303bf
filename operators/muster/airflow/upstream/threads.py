"""Has requests of Airflow's execution API inside a task's process call their functions on the thread of that API.

A server hands each function of a request to a thread, so that others are answered meanwhile. Here the one client
waits, and the three or four threads of a request cost more than what they do: the functions are called where they are.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from functools import cache
from typing import Any

from muster.airflow.upstream import internals
from muster.airflow.upstream.patch import Patch

PATCH = Patch(
    "anyio",
    ("4.",),
    0.45,
    "FastAPI calls each function that is not async in a thread: let an app say that it has one client at a time.",
)
_answering: ContextVar[bool] = ContextVar("_answering", default=False)


def answer_without_threads(app: Any) -> None:
    """Have an app's requests call their functions on its own thread, in this process, from now on."""
    if not PATCH.off:
        app.middleware_stack = _Answering(app.middleware_stack or app.build_middleware_stack())
        _call_at_once()


class _Answering:
    """Marks what belongs to a request of the app: the author's own code may use anyio, too."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        _answering.set(True)
        await self._app(scope, receive, send)


@cache
def _call_at_once() -> None:
    import anyio.to_thread

    in_a_thread = anyio.to_thread.run_sync

    async def run_sync(func: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        # Airflow takes the way to this API away while it is asked. Where that is there, a function might ask in
        # its turn, and would wait for its own thread.
        asks_no_more = getattr(internals.task_runner, "SUPERVISOR_COMMS", None) is None
        if _answering.get() and asks_no_more:
            return func(*arguments)
        return await in_a_thread(func, *arguments, **options)

    anyio.to_thread.run_sync = run_sync  # type: ignore[assignment]  # FastAPI and Starlette ask for it here
