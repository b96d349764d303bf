"""Passes requests on to a revision in another process of this machine.

Only one process has the public socket; a revision that needs another environment runs in another process. A request
is sent there as a client would send it, over a connection that stays open, and the answer is returned unchanged; one that
comes in events is passed on piece by piece.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import cast

import httptools

from muster_serving.answer import MODEL, PREDICTION, REVISION, Headers, HttpAnswer, refusal, which
from muster_serving.content import JSON_LENGTH
from muster_serving.errors import PredictionError, ServingError
from muster_serving.events import TYPE, Outlet, send_events
from muster_serving.metrics import RevisionMetrics
from muster_serving.protocol import Question
from muster_serving.routes import ROUTED

_PASSED_BACK = (b"content-type", b"cache-control", JSON_LENGTH, REVISION, MODEL, PREDICTION)
_PIECE_BYTES = 64 << 10


class RemoteGone(ServingError):
    """The other process does not answer."""


class RemoteRevision:
    """One revision behind the private port of another process.

    :param metrics: counts the requests that the other process does not answer; it counts the others itself.
    """

    def __init__(self, revision: str, port: int, metrics: RevisionMetrics) -> None:
        self.revision = revision
        self.port = port
        self.metrics = metrics
        self.headers = which(revision, None)
        self._idle: list[_Line] = []

    async def ask(self, question: Question, headers: Sequence[str] = ()) -> HttpAnswer:
        """Pass a request on and return its answer, which is sent already where it came in events.

        :param headers: lines with which the process takes it from this one (:meth:`.clients.Clients.pass_on`).
        :raises Gone: the process does not answer, or does not know the revision; nothing was sent to the client.
        """
        verb = "POST" if question.call.predicts else "GET"
        lines = [f"{verb} {ROUTED}{self.revision}{question.call.path} HTTP/1.1", "host: localhost", *headers]
        if question.json_length is not None:
            lines.append(f"{JSON_LENGTH.decode()}: {question.json_length}")
        lines += [f"content-length: {len(question.body)}", "", ""]
        request = "\r\n".join(lines).encode() + question.body
        try:
            if question.out:
                answer = await self._in_parts(request, question.out)
            else:
                answer = await self._whole(request)
        except (OSError, PredictionError) as error:
            raise RemoteGone(f"revision {self.revision} does not answer: {error}") from error
        if answer.status in (401, 404):  # it has another key only while it is being told of a new one
            raise RemoteGone(f"revision {self.revision} is not there any more")
        return answer

    async def _whole(self, request: bytes) -> HttpAnswer:
        while self._idle:
            line = self._idle.pop()
            if line.open:
                try:
                    return await self._exchange(line, request)
                except ConnectionError:
                    continue  # it was closed while idle: the request was not answered
        _, line = await asyncio.get_running_loop().create_connection(_Line, "127.0.0.1", self.port)
        return await self._exchange(line, request)

    async def _exchange(self, line: _Line, request: bytes) -> HttpAnswer:
        try:
            answer = await line.send(request)
        except asyncio.CancelledError:
            line.close()
            raise
        if line.open:
            self._idle.append(line)
        return answer

    async def _in_parts(self, request: bytes, out: Outlet) -> HttpAnswer:
        """Pass an answer on as it comes, over a connection that ends where the client leaves: the other process sees it leave.

        :raises PredictionError: the other process hung up before anything was sent to the client.
        """
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(request)
            return await out.while_there(_relayed(reader, out))
        finally:
            writer.close()


async def _relayed(reader: asyncio.StreamReader, out: Outlet) -> HttpAnswer:
    """Send the events of an answer on as they come; return it whole where it is no stream."""
    arriving = _Arriving()
    while not arriving.begun:
        await _read(reader, arriving)
    pieces = _pieces(reader, arriving)
    if dict(arriving.headers).get(b"content-type", b"").startswith(TYPE):
        return await send_events(pieces, out, arriving.headers, failed=lambda error: refusal(str(error), 503))
    async with aclosing(pieces):
        body = b"".join([piece async for piece in pieces])
    return HttpAnswer(arriving.status, body, arriving.headers)


async def _pieces(reader: asyncio.StreamReader, arriving: _Arriving) -> AsyncGenerator[bytes, None]:
    """Yield the body as it comes. :raises PredictionError: it was cut off."""
    while True:
        if taken := arriving.take():
            yield taken
        elif arriving.whole:
            return
        else:
            await _read(reader, arriving)


async def _read(reader: asyncio.StreamReader, arriving: _Arriving) -> None:
    try:
        data = await reader.read(_PIECE_BYTES)
        if not data:
            raise PredictionError("the process of this revision ended before its answer was whole")
        arriving.feed(data)
    except OSError as error:
        raise PredictionError(f"the process of this revision is gone: {error}") from error
    except httptools.HttpParserError as error:
        raise PredictionError(f"the process of this revision answers no HTTP: {error}") from error


class _Arriving:
    """An answer that arrives: httptools calls the methods whose names begin with ``on``.

    :ivar begun: whether its headers are there; :ivar whole: whether all of it is.
    :ivar last: whether the connection ends with it.
    """

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.feed = self._parser.feed_data
        self.status, self.last = 0, False
        self.on_message_begin()

    def take(self) -> bytes:
        """Return what has come of the body since the last time."""
        taken, self._taken = self._taken, []
        return b"".join(taken)

    def on_message_begin(self) -> None:
        self.headers: Headers = ()
        self._taken: list[bytes] = []
        self.begun = self.whole = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if (name := name.lower()) in _PASSED_BACK:
            self.headers += ((name, value),)

    def on_headers_complete(self) -> None:
        self.begun, self.status = True, self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self._taken.append(body)

    def on_message_complete(self) -> None:
        self.whole, self.last = True, not self._parser.should_keep_alive()


class _Line(asyncio.Protocol):
    """One connection, with one request at a time."""

    def __init__(self) -> None:
        self.open = False
        self._transport: asyncio.Transport | None = None
        self._arriving = _Arriving()
        self._answer: asyncio.Future[HttpAnswer] | None = None

    async def send(self, request: bytes) -> HttpAnswer:
        """Send a request and return the answer. :raises ConnectionError: the connection ended before the answer."""
        if self._transport is None or not self.open:
            raise ConnectionResetError("the connection is closed")
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answer

    def close(self) -> None:
        """End the connection."""
        self.open = False
        if self._transport:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport. asyncio calls this."""
        # uvloop's transport is no subclass of asyncio.Transport
        self._transport, self.open = cast("asyncio.Transport", transport), True

    def data_received(self, data: bytes) -> None:
        """Parse received bytes, and give a whole answer to the waiting request. asyncio calls this."""
        arriving = self._arriving
        try:
            arriving.feed(data)
        except httptools.HttpParserError:
            self.close()
        if arriving.whole and arriving.last:
            self.close()
        if arriving.whole and self._answer and not self._answer.done():
            self._answer.set_result(HttpAnswer(arriving.status, arriving.take(), arriving.headers))

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the waiting request. asyncio calls this."""
        self.open = False
        if self._answer and not self._answer.done():
            self._answer.set_exception(ConnectionResetError(str(exc or "it hung up")))
