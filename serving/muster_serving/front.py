"""The ASGI front of a model server: predictions, readiness and metadata by revision.

It answers what is asked often or must be exact, on the bare ASGI messages, and hands what is left
(the server's own pages) to the framework behind it. That one may only be read from: KServe would
let every client of the prediction port unload the model.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import orjson

from muster_serving import protocol
from muster_serving.body import Budget, ClientGone, Receive, read_body
from muster_serving.errors import ModelError, PredictionError, RequestError
from muster_serving.revisions import Loaded, Revisions

BIG_BODY_BYTES = 64 << 10

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Any, Receive, Send], Awaitable[None]]

logger = logging.getLogger("muster.serving")

_PATH = re.compile(
    r"/(?P<protocol>v1|v2)/models/(?P<name>[^/:]+)(/versions/(?P<revision>[^/:]+))?(?P<verb>/infer|/ready|:predict|)\Z"
)


class Front:
    """The ASGI application of one deployment.

    :param behind: answers every other GET.
    :param candidates: whether revisions that do not serve yet may be asked, by their number: on the
        private port of the smoke test, never where users are.
    """

    def __init__(self, revisions: Revisions, behind: App, *, candidates: bool = False) -> None:
        self._revisions = revisions
        self._behind = behind
        self._candidates = candidates
        self.draining = False
        self._budget = Budget()
        self._infer = f"/v2/models/{revisions.name}/infer"

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Answer one request, as ASGI asks (https://asgi.readthedocs.io)."""
        if scope["type"] != "http":
            await self._behind(scope, receive, send)
        elif scope["path"] == self._infer and scope["method"] == "POST":
            await self._predict(None, "/infer", scope, receive, send)
        else:
            await self._route(scope, receive, send)

    async def _route(self, scope: Any, receive: Receive, send: Send) -> None:
        path, method = scope["path"], scope["method"]
        if path == "/v2/health/ready":
            ready = self._revisions.serving is not None
            await self._answer(send, 200 if ready else 503, orjson.dumps({"ready": ready}))
            return
        match = _PATH.match(path)
        if match and match["verb"] in ("/infer", ":predict"):
            if method != "POST":
                await self._refuse(send, f"{method} {path}: predictions are asked for by POST", 405)
            elif match["name"] != self._revisions.name:
                await self._refuse(
                    send, f"model {match['name']!r:.80} is unknown; here is {self._revisions.name}", 404
                )
            else:
                await self._predict(match["revision"], match["verb"], scope, receive, send)
        elif match and method in ("GET", "HEAD"):
            await self._describe(match, send)
        elif method in ("GET", "HEAD"):
            await self._behind(scope, receive, send)
        else:
            await self._refuse(send, f"{method} {path!r:.80}: there is no such thing to do here", 404)

    async def _predict(
        self, revision: str | None, verb: str, scope: Any, receive: Receive, send: Send
    ) -> None:
        started = time.perf_counter()
        try:
            loaded = self._find(revision)
        except RequestError as error:
            await self._refuse(send, str(error), error.status)
            return
        try:
            body = await read_body(scope, receive, self._budget)
            if len(body) > BIG_BODY_BYTES:  # the small ones must not wait behind it
                with self._budget.holding() as take:
                    take(len(body))
                    status, payload = await asyncio.to_thread(self._respond, loaded, verb, body)
            else:
                status, payload = self._respond(loaded, verb, body)
        except RequestError as error:
            status, payload = error.status, protocol.error(str(error))
        except ClientGone:
            return
        loaded.metrics.count(status, time.perf_counter() - started)
        await self._answer(send, status, payload)

    def _respond(self, loaded: Loaded, verb: str, body: bytes) -> tuple[int, bytes]:
        try:
            if verb == ":predict":
                return 200, protocol.predict_v1(loaded.predictor, body)
            return 200, protocol.infer_v2(
                loaded.predictor, body, name=self._revisions.name, revision=loaded.revision
            )
        except RequestError as error:
            return error.status, protocol.error(str(error))
        except PredictionError as error:
            logger.error("revision %s: %s", loaded.revision, error)
            return 500, protocol.error(str(error))

    def _find(self, revision: str | None) -> Loaded:
        """Return the revision that is to answer. :raises RequestError: none, or it may not be asked here."""
        serving = self._revisions.serving
        if serving and revision in (None, serving.revision):
            return serving
        if revision is None:
            raise RequestError(
                f"no revision of {self._revisions.name} serves yet: try again soon", status=503
            )
        if not self._candidates:
            shown = serving.revision if serving else "none"
            raise RequestError(f"revision {revision!r:.60} does not serve; serving is {shown}", status=404)
        try:
            return self._revisions.find(revision)
        except ModelError as error:
            raise RequestError(str(error), status=404) from error

    async def _describe(self, match: re.Match[str], send: Send) -> None:
        """Answer a model's readiness or its metadata."""
        name = self._revisions.name
        try:
            if match["name"] != name:
                raise RequestError(f"model {match['name']!r:.80} is unknown; here is {name}", status=404)
            loaded = self._find(match["revision"])
        except RequestError as error:
            await self._refuse(send, str(error), error.status)
            return
        if match["verb"] == "/ready" or match["protocol"] == "v1":
            await self._answer(send, 200, orjson.dumps({"name": name, "ready": True}))
            return
        metadata = {"name": name, "versions": [loaded.revision], "platform": "onnxruntime_onnx"}
        await self._answer(send, 200, orjson.dumps(metadata | loaded.predictor.signature.metadata()))

    async def _refuse(self, send: Send, message: str, status: int) -> None:
        await self._answer(send, status, protocol.error(message))

    async def _answer(self, send: Send, status: int, payload: bytes) -> None:
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(payload))]
        if self.draining:
            headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": payload})
