"""One client's connection, with limits for the length of a request's parts and for the time that each may take.

Of uvicorn's two parsers only h11 has limits, and h11 costs more than all the rest of a request. So this class adds
limits to uvicorn's faster protocol: a part that is too long is refused with an answer; :meth:`Connection.look` ends a
connection that is too slow; requests sent ahead are parsed only when the earlier ones are answered.
"""

from __future__ import annotations

import asyncio
import json
from functools import partial
from http import HTTPStatus
from typing import Any

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

LINE_BYTES = 16 << 10  # the URL, and each header
_HEADERS_BYTES = 64 << 10
HEADERS = 100

HEAD_SECONDS = 10.0
REQUEST_SECONDS = 60.0
ANSWER_SECONDS = 60.0
IDLE_SECONDS = 65.0  # longer than a gateway keeps an idle connection for its next request
LEAVE_SECONDS = 10.0

CONNECTIONS = 2000  # on one socket; beyond them the connection that is idle longest is closed
_PIECE_BYTES = 4 << 10

_uvicorn = HttpToolsProtocol  # called by name: `super()` is slower, and each request makes ten such calls
_IDLE, _HEAD, _BODY = range(3)

WHOLE = "muster.answer"
_JSON = ((b"content-type", b"application/json"),)
_TOO_LARGE = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
_LONG_HEADER = f"a header has more than {LINE_BYTES} bytes"


class _Refused(Exception):
    """The server stops reading a request. :param status: the HTTP status of the answer."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class _Transport:
    """A transport that closes only after a client that still sends has had time to read its answer."""

    def __init__(self, transport: Any, connection: LimitedConnection) -> None:
        self._transport = transport
        self._connection = connection
        self.write, self.is_closing = transport.write, transport.is_closing  # each request reads them

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def close(self) -> None:
        """Close now, or when the client has had time to read."""
        if not self._connection.leave():
            self._transport.close()


class _Flow(FlowControl):
    """Pauses reading while a complete request waits for its answer."""

    def __init__(self, connection: LimitedConnection) -> None:
        super().__init__(connection.transport)
        self._connection = connection

    def resume_reading(self) -> None:
        """Read on, unless enough is buffered."""
        if self.read_paused and not (self._connection.pipeline or self._connection.ahead):
            super().resume_reading()


class LimitedConnection(HttpToolsProtocol):  # type: ignore[misc]
    """uvicorn's connection, with limits.

    :ivar ahead: bytes received after a request that is not answered yet; they are parsed after its answer.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.ahead = memoryview(b"")
        self.reading = _IDLE
        self._began = self._answered = self.loop.time()
        self._unparsed = 0
        self._headers_bytes = 0
        self._refused = False
        self._left: float | None = None
        self._unread, self._read_at = 0, self._began

    def look(self, now: float) -> None:
        """End the connection if its client is too slow. Call it about once a second."""
        if self._unheard(now):
            self.transport.abort()
        elif self._refused or self.pipeline or self.transport.is_closing():
            return  # it is closing, or the client waits for the server
        elif self.reading == _BODY:
            if now - self._began > REQUEST_SECONDS:
                self._refuse(HTTPStatus.REQUEST_TIMEOUT, f"no whole body came in {REQUEST_SECONDS:g} seconds")
        elif self._owes:
            return
        elif self.reading == _HEAD and now - self._began > HEAD_SECONDS:
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, f"no whole header came in {HEAD_SECONDS:g} seconds")
        elif self.reading == _IDLE and now - self._answered > IDLE_SECONDS:
            self.transport.close()

    def _unheard(self, now: float) -> bool:
        """Whether the client has had time to read its answer, and has not read it."""
        if self._left is not None:
            return now - self._left > LEAVE_SECONDS
        if self._owes and self.cycle.response_started:
            return self._stalls(now)  # an answer in parts
        unread = self.transport.get_write_buffer_size() > 0
        return unread and now - max(self._began, self._answered) > ANSWER_SECONDS

    def _stalls(self, now: float) -> bool:
        """Whether the client of an answer that is not whole yet has long read nothing of it."""
        left = self.transport.get_write_buffer_size()
        if not left or left != self._unread:
            self._unread, self._read_at = left, now
        return now - self._read_at > ANSWER_SECONDS

    @property
    def spare(self) -> tuple[int, float]:
        """The order in which connections are closed when there are too many: the smallest first."""
        if self.transport.is_closing():
            return 3, 0.0
        if self.reading != _IDLE or self._refused or self.transport.get_write_buffer_size():
            return 0, self._began
        return (2, self._began) if self._owes else (1, self._answered)

    @property
    def _owes(self) -> bool:
        """Whether a request is not answered yet."""
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: Any) -> None:
        """Begin; if there are too many connections, close the first in the order of :attr:`spare`."""
        super().connection_made(transport)
        self.transport = _Transport(transport, self)
        self.flow = _Flow(self)
        if len(self.connections) > CONNECTIONS:
            min(self.connections, key=lambda one: one.spare).transport.abort()

    def data_received(self, data: bytes) -> None:
        """Parse received bytes: at once if they are one request, else piece by piece."""
        if self._refused:
            return
        if len(data) <= _PIECE_BYTES and not self.ahead:
            self.parse(data)
            return
        self.ahead = memoryview(b"".join((self.ahead, data)) if self.ahead else data)
        self._parse_ahead()

    def _parse_ahead(self) -> None:
        """Parse received bytes until a request must wait for another one's answer."""
        while self.ahead and not self.pipeline:
            piece, self.ahead = self.ahead[:_PIECE_BYTES], self.ahead[_PIECE_BYTES:]
            self.parse(piece)
        if self.ahead:
            self.flow.pause_reading()

    def parse(self, data: bytes | memoryview) -> None:
        """Parse received bytes, and answer a bad request with its status."""
        self._unparsed += len(data)
        try:
            self.parser.feed_data(data)
            if self._unparsed > LINE_BYTES:
                raise _Refused(_TOO_LARGE, _LONG_HEADER)
        except httptools.HttpParserUpgrade:
            pass  # the upgrade is ignored
        except _Refused as refused:
            self._refuse(refused.status, str(refused))
        except httptools.HttpParserError as error:
            refused = error.__context__
            if isinstance(refused, _Refused):
                self._refuse(refused.status, str(refused))
            else:
                self._refuse(HTTPStatus.BAD_REQUEST, f"this is not HTTP: {error}")

    def on_message_begin(self) -> None:
        """Begin a request. The parser calls this and the next methods."""
        _uvicorn.on_message_begin(self)
        self.reading = _HEAD
        self._began = self.loop.time()
        self._headers_bytes = 0

    def on_url(self, url: bytes) -> None:
        """Take a piece of the URL."""
        self._unparsed = 0
        self.url += url
        if len(self.url) > LINE_BYTES:
            raise _Refused(HTTPStatus.REQUEST_URI_TOO_LONG, f"the URL has more than {LINE_BYTES} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header, or a trailer after the body."""
        self._unparsed = 0
        self._headers_bytes += len(name) + len(value)
        if self._headers_bytes > LINE_BYTES or len(self.headers) >= HEADERS:
            self._check_headers(len(name) + len(value))
        _uvicorn.on_header(self, name, value)

    def _check_headers(self, length: int) -> None:
        """Refuse too long headers. :raises _Refused: 431. :param length: of the last header."""
        if length > LINE_BYTES:
            raise _Refused(_TOO_LARGE, _LONG_HEADER)
        if self._headers_bytes > _HEADERS_BYTES:
            raise _Refused(_TOO_LARGE, f"the headers have more than {_HEADERS_BYTES} bytes")
        if len(self.headers) >= HEADERS:
            raise _Refused(_TOO_LARGE, f"there are more than {HEADERS} headers")

    def on_headers_complete(self) -> None:
        """Start the request's answer, after the earlier ones."""
        self.reading = _BODY
        if self.parser.get_method() == b"CONNECT":
            raise _Refused(HTTPStatus.BAD_REQUEST, "this server is no proxy: CONNECT is not answered")
        hosts = [name for name, _ in self.headers].count(b"host")
        if hosts != 1 and (hosts or self.parser.get_http_version() != "1.0"):
            raise _Refused(HTTPStatus.BAD_REQUEST, f"the request has {hosts} headers Host, expected one")
        _uvicorn.on_headers_complete(self)

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        """Start a request's answer, which may be one message."""
        cycle.send = partial(_send, cycle)
        _uvicorn._start_asgi_task(self, cycle, app)

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body."""
        self._unparsed = 0
        _uvicorn.on_body(self, body)

    def on_message_complete(self) -> None:
        """Note that the request is complete."""
        self._unparsed = 0
        self.reading = _IDLE
        _uvicorn.on_message_complete(self)

    def on_response_complete(self) -> None:
        """Begin the next request, as uvicorn does, without its timer for each: :meth:`look` finds idle connections."""
        self._answered = self.loop.time()
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        if self.ahead:
            self._parse_ahead()
        self.flow.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Drop all unparsed bytes."""
        self._refused, self.ahead = True, memoryview(b"")
        super().connection_lost(exc)

    def _unsupported_upgrade_warning(self) -> None:
        """Log nothing: a client that asks for an upgrade is no problem of the server's."""

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        """Stop reading, send outstanding answers, and close when the client has had time to read them."""
        self._refused, self.ahead = True, memoryview(b"")
        self.flow.resume_reading()
        body_of = self.cycle if self.reading == _BODY else None
        if self._owes and body_of is None:
            self.cycle.keep_alive = False  # earlier requests are still answered
            return
        if body_of is not None:
            body_of.disconnected = True
            body_of.message_event.set()
        if self.pipeline:
            self.transport.abort()
            return
        if body_of is None or not body_of.response_started:
            told = {"status": status, "headers": _JSON, "body": json.dumps({"error": message}).encode()}
            self.transport.write(_whole(told, keep_alive=False, only_head=False))
        self._leave()

    def leave(self) -> bool:
        """Close, once its client had time to read the answer, a connection that still sends; return whether that began."""
        if self.reading == _BODY and not self.transport.is_closing():
            self._leave()
        return self._left is not None

    def _leave(self) -> None:
        """End the sending side and discard what still arrives: closing with unread bytes would reset the connection."""
        if self._left is None:
            self._refused, self._left = True, self.loop.time()
            self.flow.resume_reading()
            self.transport.write_eof()


async def _send(cycle: Any, message: Any) -> None:
    """Send a message of ASGI, or a whole answer: :data:`WHOLE` has status, headers, body, and whether to close then.

    The whole answer is one write, so one system call that wakes the client once. uvicorn's own two messages are two. It returns
    when little of a long one is left to be taken.
    """
    if message["type"] != WHOLE:
        await RequestResponseCycle.send(cycle, message)
        return
    if cycle.flow.write_paused and not cycle.disconnected:
        await cycle.flow.drain()
    if cycle.disconnected:
        return
    cycle.response_started = cycle.response_complete = True
    cycle.keep_alive = cycle.keep_alive and not message["close"]
    cycle.transport.write(
        _whole(message, keep_alive=cycle.keep_alive, only_head=cycle.scope["method"] == "HEAD")
    )
    cycle.message_event.set()
    if not cycle.keep_alive:
        cycle.transport.close()
    cycle.on_response()
    if cycle.flow.write_paused:  # the client takes a long answer piece by piece
        try:
            await cycle.flow.drain()
        except asyncio.CancelledError:  # what the client did not read is in memory until the connection ends
            cycle.transport.abort()
            raise


def _whole(message: Any, *, keep_alive: bool, only_head: bool) -> bytes:
    headers, body = message["headers"], message["body"]
    lines = [b"%b: %b\r\n" % header for header in headers]
    lines.append(b"content-length: %d\r\n" % len(body))
    if not keep_alive:
        lines.append(b"connection: close\r\n")
    head = b"".join(lines)
    if not len(lines) == head.count(b"\n") == head.count(b"\r"):
        raise RuntimeError(f"a header holds a line's end: {headers!r:.500}")
    return b"".join((STATUS_LINE[message["status"]], head, b"\r\n", b"" if only_head else body))
