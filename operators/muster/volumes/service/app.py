"""The store service as an ASGI application."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Receive, Scope, Send

from muster.core.errors import SpecError, StoreError
from muster.core.extensions import extensions, load
from muster.volumes.folder import FolderStore
from muster.volumes.service import answers, checks, pods, reading, spooling, writing
from muster.volumes.service.bells import Bells
from muster.volumes.service.calls import refusal
from muster.volumes.service.committer import Committer
from muster.volumes.service.hearing import Hearing
from muster.volumes.service.journal import Journals
from muster.volumes.service.regrouping import Regrouping
from muster.volumes.service.served import Served
from muster.volumes.service.standby import ALIVE
from muster.volumes.service.starts import GangStarts


def create_app(store: FolderStore, *, keys: Sequence[bytes], keeps_requests: bool = False) -> Starlette:
    """Build the service. At its start it resumes the commit of sealed jobs.

    A store has at most one service; see :mod:`muster.volumes.service.serve`.

    :param keeps_requests: whether model servers may keep requests here, since something commits them.
    """
    journals, hearing = Journals(store), Hearing()
    committer = Committer(store, journals, hearing)
    starts = GangStarts(store, committer)
    served = Served(
        store=store,
        keys=tuple(keys),
        journals=journals,
        hearing=hearing,
        committer=committer,
        starts=starts,
        regrouping=Regrouping(starts, committer, Bells()),
        keeps_requests=keeps_requests,
    )

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        served.committer.start()
        yield
        served.committer.stop()

    parts = [each.routes for each in (answers, checks, pods, reading, spooling, writing)]
    parts += [load(each.calls) for each in extensions().values() if each.calls is not None]
    app = Starlette(
        routes=[
            Route("/healthz", _healthy),
            Route(ALIVE, _healthy),
            ByLastPart([bind(served) for part in parts for bind in part(served)]),
        ],
        lifespan=lifespan,
        exception_handlers={HTTPException: _no_such_call, Exception: _defect},
    )
    app.router.redirect_slashes = False  # a path is right as it is, or wrong
    return app


class ByLastPart(BaseRoute):
    """Many routes, found by the path's last part: trying all took a quarter of a short request's time."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self.routes = list(routes)
        self._by_last: dict[str, list[Route]] = {}
        for route in routes:
            last = route.path.rpartition("/")[2]
            self._by_last.setdefault("" if "{" in last else last, []).append(route)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Return the route that matches, or one that matches but for its method."""
        found, said = Match.NONE, dict[str, Any]()
        last = scope["path"].rpartition("/")[2]
        for route in (*self._by_last.get(last, ()), *self._by_last.get("", ())):
            match, parts = route.matches(scope)
            if match is Match.FULL:
                return match, {**parts, "route": route}
            if match is Match.PARTIAL:
                found, said = match, {**parts, "route": route}
        return found, said

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on to the route that was found."""
        await scope["route"].handle(scope, receive, send)


async def _healthy(_: Request) -> Response:  # needs no thread: all may be busy
    return PlainTextResponse("ok\n")


def _no_such_call(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    said = SpecError(
        f"the store service knows no {request.method} {request.url.path!r:.120} ({error.detail}): "
        "is the client of the same release?"
    )
    response = refusal(said)
    response.status_code = error.status_code
    return response


def _defect(_: Request, error: Exception) -> Response:
    return refusal(StoreError(f"the store service failed ({type(error).__name__}): its log says at what"))
