"""The ASGI front of a model server: predictions by the revisions' shares, readiness and metadata.

It answers what is asked often or must be exact, on the bare ASGI messages, and hands what is left
(the server's own pages) to the framework behind it. That one may only be read from: KServe would
let every client of the prediction port unload the model.

A request that names a revision is a check of that one, not traffic: it is answered and not counted.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, NamedTuple

import orjson

from muster_serving import protocol
from muster_serving.body import Budget, ClientGone, Receive, read_body
from muster_serving.elsewhere import ROUTED, Elsewhere, Gone
from muster_serving.errors import ModelError, PredictionError, RequestError
from muster_serving.revisions import Loaded, Revisions

BIG_BODY_BYTES = 64 << 10

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Any, Receive, Send], Awaitable[None]]

logger = logging.getLogger("muster.serving")

_PATH = re.compile(
    rf"({ROUTED}(?P<routed>[^/:]+))?"
    r"(?P<path>/(?P<protocol>v1|v2)/models/(?P<name>[^/:]+)(/versions/(?P<revision>[^/:]+))?"
    r"(?P<verb>/infer|/ready|:predict|))\Z"
)
_NO_FAULT_OF_THE_MODEL = 499


class Call(NamedTuple):
    """What a path asks for.

    :param routed: the revision to which another process has passed it on, by the shares.
    :param revision: the revision that the client names.
    """

    path: str
    verb: str
    routed: str | None = None
    revision: str | None = None
    protocol: str = "v2"
    name: str = ""


class Front:
    """The ASGI application of one deployment.

    :param behind: answers every other GET.
    :param candidates: whether revisions without a share may be asked too, by their name, and another
        process may pass requests on: on the private port, never where users are.
    """

    def __init__(self, revisions: Revisions, behind: App, *, candidates: bool = False) -> None:
        self._revisions = revisions
        self._behind = behind
        self._candidates = candidates
        self.draining = False
        self._budget = Budget()
        self._infer = f"/v2/models/{revisions.name}/infer"
        self._usual = Call(self._infer, "/infer")

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Answer one request, as ASGI asks (https://asgi.readthedocs.io)."""
        if scope["type"] != "http":
            await self._behind(scope, receive, send)
        elif scope["path"] == self._infer and scope["method"] == "POST":
            await self._predict(self._usual, scope, receive, send)
        else:
            await self._route(scope, receive, send)

    async def _route(self, scope: Any, receive: Receive, send: Send) -> None:
        path, method = scope["path"], scope["method"]
        if path == "/v2/health/ready":
            ready = self._revisions.serving is not None
            await self._answer(send, 200 if ready else 503, orjson.dumps({"ready": ready}))
            return
        match = _PATH.match(path)
        if match and match["routed"] and not self._candidates:
            match = None  # that is for the servers among themselves
        if match and match["verb"] in ("/infer", ":predict"):
            if method != "POST":
                await self._refuse(send, f"{method} {path}: predictions are asked for by POST", 405)
            elif match["name"] != self._revisions.name:
                await self._refuse(
                    send, f"model {match['name']!r:.80} is unknown; here is {self._revisions.name}", 404
                )
            else:
                await self._predict(Call(**match.groupdict()), scope, receive, send)
        elif match and method in ("GET", "HEAD"):
            await self._describe(match, send)
        elif method in ("GET", "HEAD"):
            await self._behind(scope, receive, send)
        else:
            await self._refuse(send, f"{method} {path!r:.80}: there is no such thing to do here", 404)

    async def _predict(self, call: Call, scope: Any, receive: Receive, send: Send) -> None:
        started = time.perf_counter()
        try:
            target = (call is self._usual and self._revisions.pick()) or self._find(call)
        except RequestError as error:
            await self._refuse(send, str(error), error.status)
            return
        try:
            body = await read_body(scope, receive, self._budget)
            if isinstance(target, Elsewhere):
                target, status, payload = await self._pass_on(target, call, body)
            elif len(body) <= BIG_BODY_BYTES:
                status, payload = self._compute(target, call.verb, body)
            else:
                status, payload = await self._compute_apart(target, call.verb, body)
            counted_as = status
        except RequestError as error:
            status, payload = error.status, protocol.error(str(error))
            counted_as = min(status, _NO_FAULT_OF_THE_MODEL)
        except ClientGone:
            return
        if target is not None and call.revision is None:
            target.metrics.count(counted_as, time.perf_counter() - started)
        await self._answer(send, status, payload)

    async def _pass_on(self, target: Elsewhere, call: Call, body: bytes) -> tuple[Loaded | None, int, bytes]:
        """Have another process answer, which counts that; where it does not, the greatest share that is here.

        Who names a revision wants no other one's answer.
        """
        started = time.perf_counter()
        try:
            return None, *(await target.ask("POST", call.path, body))
        except Gone as error:
            logger.error("%s", error)
            if call.revision is not None:
                return None, 503, protocol.error(str(error))
            target.metrics.count(503, time.perf_counter() - started)
            here = (one for one in self._revisions.sharing.values() if isinstance(one, Loaded))
            if (instead := next(here, None)) is None:
                return None, 503, protocol.error(str(error))
        if len(body) <= BIG_BODY_BYTES:
            return instead, *self._compute(instead, call.verb, body)
        return instead, *(await self._compute_apart(instead, call.verb, body))

    async def _compute_apart(self, loaded: Loaded, verb: str, body: bytes) -> tuple[int, bytes]:
        """Answer in a thread: small bodies must not wait behind it. :raises RequestError: there is no room."""
        with self._budget.holding() as take:
            take(len(body))
            return await asyncio.to_thread(self._compute, loaded, verb, body)

    def _compute(self, loaded: Loaded, verb: str, body: bytes) -> tuple[int, bytes]:
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

    def _find(self, call: Call) -> Loaded | Elsewhere:
        """Return the revision that is to answer. :raises RequestError: none, or it may not be asked here."""
        revision, sharing = call.routed or call.revision, self._revisions.sharing
        if revision is None:
            if (picked := self._revisions.pick()) is None:
                raise RequestError(
                    f"no revision of {self._revisions.name} serves yet: try again soon", status=503
                )
            return picked
        if revision in sharing and not call.routed:
            return sharing[revision]
        if not self._candidates:
            shown = ", ".join(sharing) or "none"
            raise RequestError(f"revision {revision!r:.60} does not serve; serving is {shown}", status=404)
        try:
            return self._revisions.find(revision)
        except ModelError as error:
            raise RequestError(str(error), status=404) from error

    async def _describe(self, match: re.Match[str], send: Send) -> None:
        """Answer a model's readiness or its metadata: of the greatest share, where none is named."""
        name, call = self._revisions.name, Call(**match.groupdict())
        try:
            if match["name"] != name:
                raise RequestError(f"model {match['name']!r:.80} is unknown; here is {name}", status=404)
            found = self._find(call)
            if not (call.routed or call.revision):
                found = self._revisions.serving or found
            if isinstance(found, Elsewhere):
                await self._answer(send, *(await found.ask("GET", call.path)))
                return
        except RequestError as error:
            await self._refuse(send, str(error), error.status)
            return
        except Gone as error:
            await self._refuse(send, str(error), 503)
            return
        if call.verb == "/ready" or match["protocol"] == "v1":
            await self._answer(send, 200, orjson.dumps({"name": name, "ready": True}))
            return
        metadata = {"name": name, "versions": [found.revision], "platform": "onnxruntime_onnx"}
        await self._answer(send, 200, orjson.dumps(metadata | found.predictor.signature.metadata()))

    async def _refuse(self, send: Send, message: str, status: int) -> None:
        await self._answer(send, status, protocol.error(message))

    async def _answer(self, send: Send, status: int, payload: bytes) -> None:
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(payload))]
        if self.draining:
            headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": payload})
