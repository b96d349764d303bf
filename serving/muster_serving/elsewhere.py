"""Passes requests on to a revision in another process of this machine.

Only one process has the public socket; a revision that needs another environment runs in another process. A request
is sent there as a client would send it, over a connection that stays open, and the answer is returned unchanged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

import httptools

from muster_serving.answer import MODEL, PREDICTION, REVISION, Answer, Headers, which
from muster_serving.content import JSON_LENGTH
from muster_serving.errors import ServingError
from muster_serving.events import Outlet
from muster_serving.metrics import RevisionMetrics
from muster_serving.relay import relay
from muster_serving.routes import ROUTED

_PASSED_BACK = (b"content-type", JSON_LENGTH, REVISION, MODEL, PREDICTION)


class Gone(ServingError):
    """The other process does not answer."""


class Elsewhere:
    """One revision behind the private port of another process.

    :param metrics: counts the requests that the other process does not answer; it counts the others itself.
    """

    def __init__(self, revision: str, port: int, metrics: RevisionMetrics) -> None:
        self.revision = revision
        self.port = port
        self.metrics = metrics
        self.headers = which(revision, None)
        self._idle: list[_Line] = []

    async def ask(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        json_length: int | None = None,
        headers: Sequence[str] = (),
    ) -> Answer:
        """Pass a request on and return its answer.

        :param json_length: how much of the body is JSON, where binary tensors come after it.
        :param headers: lines with which the process takes it from this one (:meth:`.clients.Clients.pass_on`).
        :raises Gone: the process does not answer, or does not know the revision.
        """
        request = self._request(method, path, body, json_length=json_length, headers=headers)
        while self._idle:
            line = self._idle.pop()
            if line.open:
                try:
                    return await self._exchange(line, request)
                except ConnectionError:
                    continue  # it was closed while idle: the request was not answered
        try:
            _, line = await asyncio.get_running_loop().create_connection(_Line, "127.0.0.1", self.port)
            return await self._exchange(line, request)
        except OSError as error:
            raise Gone(f"revision {self.revision} does not answer: {error}") from error

    async def stream(
        self, path: str, body: bytes, out: Outlet, *, json_length: int | None, headers: Sequence[str]
    ) -> Answer:
        """Pass a request on whose answer comes in events, and those as they come; parameters as of :meth:`ask`.

        :raises Gone: as :meth:`ask`, before anything is sent to the client.
        """
        request = self._request("POST", path, body, json_length=json_length, headers=headers)
        try:
            return self._there(await relay(self.port, request, out, keep=(*_PASSED_BACK, b"cache-control")))
        except OSError as error:
            raise Gone(f"revision {self.revision} does not answer: {error}") from error

    def _request(
        self, method: str, path: str, body: bytes, *, json_length: int | None, headers: Sequence[str]
    ) -> bytes:
        lines = [f"{method} {ROUTED}{self.revision}{path} HTTP/1.1", "host: localhost", *headers]
        if json_length is not None:
            lines.append(f"{JSON_LENGTH.decode()}: {json_length}")
        return "\r\n".join([*lines, f"content-length: {len(body)}", "", ""]).encode() + body

    async def _exchange(self, line: _Line, request: bytes) -> Answer:
        try:
            answer = await line.send(request)
        except asyncio.CancelledError:
            line.close()
            raise
        if line.open:
            self._idle.append(line)
        return self._there(answer)

    def _there(self, answer: Answer) -> Answer:
        if answer.status in (401, 404):  # it has another key only while it is being told of a new one
            raise Gone(f"revision {self.revision} is not there any more")
        return answer


class _Line(asyncio.Protocol):
    """One connection, with one request at a time."""

    def __init__(self) -> None:
        self.open = False
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._body: list[bytes] = []
        self._headers: Headers = ()
        self._answer: asyncio.Future[Answer] | None = None

    async def send(self, request: bytes) -> Answer:
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
        """Parse received bytes. asyncio calls this."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the waiting request. asyncio calls this."""
        self.open = False
        if self._answer and not self._answer.done():
            self._answer.set_exception(ConnectionResetError(str(exc or "it hung up")))

    def on_message_begin(self) -> None:
        """Begin an answer. The parser calls this."""
        self._body, self._headers = [], ()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header of an answer. The parser calls this."""
        if (name := name.lower()) in _PASSED_BACK:
            self._headers += ((name, value),)

    def on_body(self, body: bytes) -> None:
        """Take a piece of an answer's body. The parser calls this."""
        self._body.append(body)

    def on_message_complete(self) -> None:
        """Give the answer to the waiting request. The parser calls this."""
        if not self._parser.should_keep_alive():
            self.close()
        if self._answer and not self._answer.done():
            answer = Answer(self._parser.get_status_code(), b"".join(self._body), self._headers)
            self._answer.set_result(answer)
