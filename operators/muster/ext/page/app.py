"""The page as an application that Airflow's api-server mounts at ``/muster``: JSON under ``api``, users' files under ``files``."""

from __future__ import annotations

import logging
from hashlib import blake2b
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.exception_handlers import http_exception_handler
from fastapi.responses import FileResponse, HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException as RoutingError
from starlette.routing import Route

from muster.airflow.page.access import plugins
from muster.airflow.page.route import Json, Opening, Site
from muster.airflow.teams import site_teams
from muster.airflow.upstream import internals
from muster.airflow.upstream.internals import get_auth_manager
from muster.core.errors import Conflict, Corrupt, MusterError, NotFound, SpecError
from muster.core.extensions import extensions, problems, used
from muster.core.job import SecretRef
from muster.ext.page import routes_jobs, routes_serving, routes_volumes
from muster.ext.page.answering import Answering, CounterSampling, Past

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


# The page may run and load the files beside it, and be framed by Airflow.
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "SAMEORIGIN",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
log = logging.getLogger(__name__)
CHECKED = {"cache-control": "no-cache"}
_NOT_LET_IN = (
    "Airflow does not let you see muster's page, where this link leads: ask an administrator for the permission to read "
    "plugins. With FAB's auth manager that is 'can read on Plugins', in Security, List Roles.\n"
)
_STATUS = ((NotFound, 404), (SpecError, 400), (Conflict, 409))


def create_app() -> FastAPI:
    """Build the page. It opens its store with the first request, not before."""
    app = FastAPI(
        title="muster",
        dependencies=[plugins],
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    past = Past()
    app.state.opening = Opening(lambda: open_site(past))
    app.state.sampling = CounterSampling(app.state.opening)
    app.add_middleware(Headers)
    app.add_exception_handler(MusterError, _refused)
    app.add_exception_handler(OSError, _refused)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RoutingError, _lost)
    own = [each.api for each in (routes_jobs, routes_volumes, routes_serving)]
    for router in (*own, *used(lambda each: each.routes)):
        app.include_router(router, prefix="/api", dependencies=[Depends(_begin)])
    for problem in problems():
        log.warning("%s", problem)
    app.include_router(routes_volumes.documents)
    app.router.routes.append(Route("/health", _health))
    static, html = files(), document()
    mark = blake2b(html.encode(), digest_size=12).hexdigest()

    @app.get("/")
    def page() -> HTMLResponse:
        return HTMLResponse(html, headers={**CHECKED, "etag": f'"{mark}"'})

    @app.get("/static/{name:path}")
    def beside(name: str) -> FileResponse:
        if name not in static:
            raise HTTPException(404, f"the page has no file {name!r:.80}")
        return FileResponse(static[name], media_type=TYPES[static[name].suffix], headers=CHECKED)

    return app


def _health(_: Request) -> Response:
    """Tell all who ask, as Airflow's own page of health does, how many Dags cannot be parsed any more."""
    from sqlalchemy import func, select

    broken = select(func.count()).where(
        internals.DagModel.has_import_errors.is_(True), internals.DagModel.is_stale.is_(False)
    )
    with internals.create_session() as session:
        return Json({"broken_dags": session.scalar(broken)})


def open_site(past: Past) -> Site:
    """Open the backend. The page has no secrets, so it cannot take over a job that needs some."""
    from muster.airflow.site import open_backend

    backend = open_backend(resolve=_no_secret)
    return Site(backend, Answering(backend.deployments, past))


def _begin(request: Request) -> None:
    request.app.state.sampling.begin()


def _no_secret(secret: SecretRef) -> str:
    raise KeyError(secret.name)


class Headers:
    """Puts the headers of the page on every response that does not bring its own.

    A response that the browser has already, by its ETag, is sent as 304 without its body.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and mark its response."""
        known = Request(scope).headers.get("if-none-match") if scope["type"] == "http" else None
        same = False

        async def marked(message: Message) -> None:
            nonlocal same
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                if known and message["status"] == 200 and headers.get("etag") == known.removeprefix("W/"):
                    same = True
                    message["status"] = 304
                    del headers["content-length"]
            elif same:
                if message.get("more_body"):
                    return
                message = {"type": "http.response.body", "body": b""}
            await send(message)

        await self._app(scope, receive, marked)


async def _refused(request: Request, error: Exception) -> Response:
    """Answer with the error's message; errors of the store are 5xx.

    After an error of the store the next request opens it anew: its token may have been renewed.
    """
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 503)
    site = getattr(request.state, "site", None)  # None if it could not be opened
    if status == 503 and site is not None and not isinstance(error, (Corrupt, OSError)):
        request.app.state.opening.replace(site)
    said = str(error)
    if isinstance(error, NotFound) and site_teams().named:
        said = said.partition("; there ")[0]  # what there is may be another team's
    return Json({"detail": said}, status_code=status)


async def _http(request: Request, error: Any) -> Response:
    """Redirect a person without a session to Airflow's login, tell one without the right who gives it; pass on other errors."""
    if request.scope["path"].endswith("/muster/"):
        if error.status_code == 401:
            return RedirectResponse(
                get_auth_manager().get_url_login(next_url=str(request.url)), status_code=307
            )
        if error.status_code == 403:
            return PlainTextResponse(_NOT_LET_IN, status_code=403)
    return await http_exception_handler(request, error)


async def _lost(request: Request, error: Any) -> Response:
    """Name an address that the page does not have, and where the page is."""
    if error.status_code != 404:
        return await http_exception_handler(request, error)
    root = request.scope.get("root_path", "") or "/muster"
    detail = f"the page has nothing at {request.scope['path']!r:.200}: it is at {root}/"
    return Json({"detail": detail}, status_code=404)


_STATIC = Path(__file__).parent / "static"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}


def files() -> dict[str, Path]:
    """Return every file by its name: ``app.js``, and ``search/searches.js`` of an extension."""
    folders = {"": _STATIC, **{f"{name}/": each.static for name, each in extensions().items() if each.static}}
    return {
        f"{prefix}{path.name}": path
        for prefix, folder in folders.items()
        for path in sorted(folder.glob("*"))
        if path.suffix in TYPES
    }


def document() -> str:
    """Return the page's document: it names all scripts and the extensions' tabs, so that the browser asks for nothing twice."""
    tabs = {f"{name}/{tab.script}": tab for name, each in extensions().items() for tab in each.tabs}
    modules, links = "", ""
    for name in files():
        if name.endswith(".js"):
            tab = tabs.get(name)
            of = f' data-room="{escape(tab.room)}" data-title="{escape(tab.title)}"' if tab else ""
            modules += f'<link rel="modulepreload" href="static/{escape(name)}"{of}>\n'
            if tab and tab.listed:
                links += f'<a href="#/{escape(tab.room)}">{escape(tab.title)}</a>\n'
    text = (_STATIC / "index.html").read_text(encoding="utf-8")
    return text.replace("<!-- modules -->\n", modules).replace("<!-- tabs -->\n", links)
