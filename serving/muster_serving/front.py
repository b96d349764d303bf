"""The application of a model server behind :class:`~muster_serving.connection.LimitedConnection`: predictions, readiness, metadata.

It answers predictions and the model's pages itself, on bare ASGI messages. Where a framework is behind it, it passes three
read-only pages on. The framework's other pages are not reachable: with KServe's, every client of the prediction port could
unload the model.

A request that names a revision is a check of that revision, not traffic: it is answered and not counted.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from typing import Any

from muster_serving import pages, protocol, routes
from muster_serving.answer import CLIENT_LEFT, HttpAnswer, not_allowed, not_there, refusal
from muster_serving.body import MAX_BODY_BYTES, BodyTurns, ByteBudget, ClientGone, Receive, read_body
from muster_serving.clients import Caller, Clients, ClientsFile, RawHeaders
from muster_serving.connection import WHOLE
from muster_serving.content import is_packed, json_length, unpacked
from muster_serving.elsewhere import RemoteGone, RemoteRevision
from muster_serving.errors import ANSWERING, READING, ModelError, PredictionError, RequestError
from muster_serving.events import EVENTS, Connected, Outlet, one_event, send_events, written
from muster_serving.predictor import Predictor
from muster_serving.process.predictor import ProcessPredictor
from muster_serving.protocol import Question
from muster_serving.revisions import LoadedRevision, Revisions
from muster_serving.routes import STREAM, ModelPath

BIG_BODY_BYTES = 64 << 10

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
Read = Callable[[int], Awaitable[tuple[bytes, int | None]]]
App = Callable[[Any, Receive, Send], Awaitable[None]]

logger = logging.getLogger("muster.serving")

_REFUSED = 400


class Front:
    """The ASGI application of one deployment.

    :param behind: a framework's application, for the pages :data:`~muster_serving.routes.BESIDE`; None: there is none.
    :param candidates: whether requests may name revisions without a share, and another process may pass
        requests on: true on the private port, never on the users' port.
    :param file: of the clients' tokens, on a cluster: muster sends what changes.
    :ivar budget: of the bytes of bodies and answers.
    """

    def __init__(
        self,
        revisions: Revisions,
        clients: Clients,
        *,
        behind: App | None = None,
        candidates: bool = False,
        file: ClientsFile | None = None,
    ) -> None:
        self._revisions = revisions
        self._clients = clients
        self._file = file
        self._behind = behind
        self._candidates = candidates
        self.draining = False
        self.budget, self._turns = ByteBudget(), BodyTurns()
        self._infer = f"/v2/models/{revisions.name}/infer"
        self._usual = ModelPath(self._infer, "/infer", name=revisions.name)

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Answer one request (ASGI: https://asgi.readthedocs.io)."""
        if misnamed := self._clients.misnamed(scope["headers"]):
            await self._answer(send, misnamed)
        elif scope["path"] == self._infer and scope["method"] == "POST":
            await self._predict(self._usual, scope, receive, send)
        else:
            await self._route(scope, receive, send)

    async def _route(self, scope: Any, receive: Receive, send: Send) -> None:
        path, method = scope["path"], scope["method"]
        if self._file and path == routes.TOKENS and self._clients.insider(scope["headers"]):
            await self._answer(send, await self._take_tokens(self._file, scope, receive))
            return
        call = routes.call_of(path, routed=self._candidates)
        allowed = routes.allowed(path, call)
        if call and call.predicts and method == "POST":
            await self._predict(call, scope, receive, send)
        elif not routes.is_open(path, call) and (refused := self.refused(scope["headers"])):
            await self._answer(send, refused)
        elif allowed is None:
            await self._answer(send, not_there(method, path))
        elif method not in allowed:
            await self._answer(send, not_allowed(method, path, allowed))
        elif call:
            await self._answer(send, await self.describe(call))
        elif self._behind and path in routes.BESIDE:
            await self._behind(scope | {"method": "GET"}, receive, send)
        else:
            await self._answer(send, self.page(path))

    async def _take_tokens(self, file: ClientsFile, scope: Any, receive: Receive) -> HttpAnswer:
        try:
            file.take(await read_body(scope, receive, self.budget))
        except RequestError as error:
            return refusal(str(error), error.status)
        except (ValueError, ClientGone) as error:
            return refusal(f"the tokens cannot be read: {error}", 400)
        return HttpAnswer(200, b"{}")

    def _admit(self, headers: RawHeaders, *, asks: bool = True) -> Caller | HttpAnswer | None:
        """Return whose request this is, or its refusal; None where anyone may ask.

        :param asks: whether it asks for predictions, which are counted and limited.
        """
        if self._candidates:
            return self._clients.within(headers)
        admits = self._clients.checked if asks else self._clients.needed
        return self._clients.admit(headers, asks=asks) if admits else None

    def refused(self, headers: RawHeaders) -> HttpAnswer | None:
        """Return the refusal of a request, of any protocol, for what is not open to all; None where it may ask.

        It counts for no limit: :meth:`predict` admits requests for predictions by itself.
        """
        found = self._admit(headers, asks=False)
        return found if isinstance(found, HttpAnswer) else None

    def page(self, path: str) -> HttpAnswer:
        """Return a page of the server, about the revision with the greatest share in this process."""
        sharing = self._revisions.sharing
        here = next((one for one in sharing.values() if isinstance(one, LoadedRevision)), None)
        return pages.page(
            path,
            name=self._revisions.name,
            revisions=list(sharing),
            signature=here.predictor.signature if here else None,
        )

    async def _predict(self, call: ModelPath, scope: Any, receive: Receive, send: Send) -> None:
        headers = scope["headers"]

        async def read(most: int) -> tuple[bytes, int | None]:
            packed = is_packed(headers)
            body = await read_body(scope, receive, self.budget, most=most)
            if packed:  # in a thread: of what comes at once, so many are unpacked as there are threads
                body = await asyncio.to_thread(unpacked, body, most=most)
            return body, json_length(headers)

        out = Connected(receive, send, closing=self.draining) if call.verb == STREAM else None
        try:
            answer = await self.predict(call, headers, read, out)
        except ClientGone:
            return
        if out and answer.sent:
            await out.end()
        else:
            await self._answer(send, one_event(answer) if out and answer.status == 200 else answer)

    async def predict(
        self, call: ModelPath, headers: RawHeaders, read: Read, out: Outlet | None = None
    ) -> HttpAnswer:
        """Answer a prediction of any protocol: admitted before it is read, counted, and kept in the log.

        :param headers: HTTP's, or gRPC's metadata.
        :param read: returns the request's body, which may have so many bytes, and how many of them are JSON, None if
            all are.
        :param out: where an answer in parts goes as it is computed; None: all answers are whole.
        :raises ClientGone: from `read`.
        """
        started = time.perf_counter()
        client = self._admit(headers)
        if isinstance(client, HttpAnswer):
            return client
        try:
            target = (call is self._usual and self._revisions.pick()) or self._find(call)
        except RequestError as error:
            return refusal(str(error), error.status)
        try:
            with READING:
                question = Question(call, *await read(self._most_bytes(headers)), client, out)
            with ANSWERING:
                answer = None
                if isinstance(target, RemoteRevision):
                    target, answer = await self._pass_on(target, question)
                if answer is None:
                    assert isinstance(target, LoadedRevision)
                    answer = await self._answered(target, question)
            counted_as = answer.status
        except (RequestError, PredictionError) as error:
            assert target is not None
            answer = self._failed(target, error)
            counted_as = min(answer.status, _REFUSED) if isinstance(error, RequestError) else answer.status
        except asyncio.CancelledError:
            # gRPC's, when its client waits no longer, or this server's end; the time that was waited counts
            if isinstance(target, LoadedRevision) and call.revision is None:
                target.metrics.count(CLIENT_LEFT, time.perf_counter() - started)
            raise
        if target is not None and call.revision is None:
            target.metrics.count(counted_as, time.perf_counter() - started)
            if answer.status == 200:
                answer = self._kept(target, question, answer)
        return answer

    def _kept(self, target: LoadedRevision, asked: Question, answer: HttpAnswer) -> HttpAnswer:
        """Note what was asked and answered, and return the answer with its id where it is kept."""
        target.metrics.outside(answer.outside)
        if answer.places is not None and target.histograms:
            target.histograms.count(answer.places)
        return answer if target.log is None or answer.sent else target.log.keep(asked, answer)

    def _most_bytes(self, headers: RawHeaders) -> int:
        """Return how long a request's body may be; muster's own have no limit of the deployment's."""
        most = self._clients.most_bytes
        own = self._candidates or (most < MAX_BODY_BYTES and self._clients.insider(headers))
        return MAX_BODY_BYTES if own else most

    async def _pass_on(
        self, target: RemoteRevision, asked: Question
    ) -> tuple[LoadedRevision | None, HttpAnswer | None]:
        """Have another process answer and count; if it fails, return who is to answer here: the one with the greatest share.

        A request that names a revision gets an error instead.
        """
        started, call = time.perf_counter(), asked.call
        try:
            answer = await target.ask(asked, self._clients.pass_on(asked.client))
            if answer.sent and answer.status == 503 and call.revision is None:  # it was cut off there
                target.metrics.count(503, time.perf_counter() - started)
            return None, answer
        except RemoteGone as error:
            logger.error("%s", error)
            if call.revision is not None:
                return None, refusal(str(error), 503, target.headers)
            target.metrics.count(503, time.perf_counter() - started)
            here = (one for one in self._revisions.sharing.values() if isinstance(one, LoadedRevision))
            instead = next(here, None)
            return instead, None if instead else refusal(str(error), 503, target.headers)

    async def _answered(self, loaded: LoadedRevision, asked: Question) -> HttpAnswer:
        """Answer with a revision of this process.

        :raises RequestError: the request is wrong, or too much is under way. :raises PredictionError: the model failed.
        """
        predictor = loaded.predictor
        if len(asked.body) <= BIG_BODY_BYTES:
            if isinstance(predictor, ProcessPredictor):
                return await self._ask(loaded, predictor, asked)
            return protocol.answer(predictor, asked, of=loaded)
        with self.budget.holding() as take:
            take(len(asked.body))
            if isinstance(predictor, ProcessPredictor):
                return await self._ask(loaded, predictor, asked, apart=True)
            # in a thread, so that small requests need not wait
            return await self._turns.in_thread(
                len(asked.body), partial(protocol.answer, predictor, asked, of=loaded)
            )

    async def _ask(
        self, loaded: LoadedRevision, predictor: ProcessPredictor, question: Question, *, apart: bool = False
    ) -> HttpAnswer:
        """Have a worker process compute an answer.

        :param apart: read the request in a thread, so that small requests need not wait.
        """
        read = partial(protocol.read, predictor.signature, question, revision=loaded.revision)
        asked = await self._turns.in_thread(len(question.body), read) if apart else read()
        out = question.out
        if out and predictor.streams:
            parts = predictor.parts(asked.columns, asked.rows)
            headers, failed = EVENTS + loaded.headers, partial(self._failed, loaded)
            events = written(parts, asked.write)
            answer = await out.while_there(send_events(events, out, headers, failed=failed))
        else:
            payload, headers = asked.write(await predictor.predict(asked.columns, asked.rows))
            answer = HttpAnswer(200, payload, headers + loaded.headers)
        find_outside = predictor.signature.outside
        outside = (
            await asyncio.to_thread(find_outside, asked.columns) if apart else find_outside(asked.columns)
        )
        places = loaded.histograms.places(asked.columns, asked.rows) if loaded.histograms else None
        return answer._replace(outside=outside, places=places)

    def _failed(
        self, target: LoadedRevision | RemoteRevision, error: RequestError | PredictionError
    ) -> HttpAnswer:
        """Answer with whose fault it is: the client's, by its status, or the version's, which the log tells."""
        if isinstance(error, RequestError):
            return refusal(str(error), error.status, target.headers)
        logger.error("revision %s: %s", target.revision, error)
        return refusal(str(error), 500, target.headers)

    def _find(self, call: ModelPath) -> LoadedRevision | RemoteRevision:
        """Return the revision that answers. :raises RequestError: there is none, or it may not be named here."""
        if call.name != self._revisions.name:
            raise RequestError(
                f"model {call.name!r:.80} is unknown; here is {self._revisions.name}", status=404
            )
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

    async def describe(self, call: ModelPath) -> HttpAnswer:
        """Answer with a model's readiness or metadata: of the revision with the greatest share, unless one is named."""
        try:
            found = self._find(call)
            if not (call.routed or call.revision):
                found = self._revisions.serving or found
            if isinstance(found, RemoteRevision):
                return await found.ask(Question(call), self._clients.pass_on())
        except RequestError as error:
            return refusal(str(error), error.status)
        except RemoteGone as error:
            return refusal(str(error), 503)
        platform = pages.ONNX if isinstance(found.predictor, Predictor) else pages.PYTHON
        signature = found.predictor.signature
        answer = pages.described(call, self._revisions.name, found.revision, signature, platform=platform)
        return HttpAnswer(answer.status, answer.body, answer.headers + found.headers)

    async def _answer(self, send: Send, answer: HttpAnswer) -> None:
        status, body, headers = answer[:3]
        whole = {"type": WHOLE, "status": status, "headers": headers, "body": body, "close": self.draining}
        if len(body) <= BIG_BODY_BYTES:
            await send(whole)
            return
        try:
            async with self.budget.unread(len(body)):
                await send(whole)
        except TimeoutError:
            logger.warning(
                "a client did not read its answer of %d bytes while other answers waited", len(body)
            )
