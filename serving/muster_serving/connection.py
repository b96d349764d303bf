"""One client's connection: how much of a request it may send, and how long each part of it may take.

uvicorn's parser has limits only where it is h11, which costs a request more than all else here. So they are here, on
uvicorn's own protocol: what is longer is refused with an answer, what takes longer is ended by :meth:`Connection.look`,
and what a client sends ahead is not parsed before its earlier requests are answered.
"""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

LINE_BYTES = 16 << 10  # the URL, and each header
HEADERS_BYTES = 64 << 10
HEADERS = 100

HEAD_SECONDS = 10.0
REQUEST_SECONDS = 60.0
ANSWER_SECONDS = 60.0
IDLE_SECONDS = 65.0  # longer than a gateway keeps a connection that it may use again
LEAVE_SECONDS = 10.0

CONNECTIONS = 2000  # of one socket; beyond them, the one that waits longest is closed
_PIECE_BYTES = 4 << 10

_uvicorn = HttpToolsProtocol  # by its name: `super()` takes longer, and a request goes through here ten times
_IDLE, _HEAD, _BODY = range(3)
_TOO_LARGE = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
_LONG_HEADER = f"a header has more than {LINE_BYTES} bytes"


class _Refused(Exception):
    """The server stops reading a request. :param status: the HTTP status of the answer."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class _Transport:
    """A transport that lets a client that still sends read the answer before it closes."""

    def __init__(self, transport: Any, connection: Connection) -> None:
        self._transport = transport
        self._connection = connection
        self.write, self.is_closing = transport.write, transport.is_closing  # each request asks for them

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def close(self) -> None:
        """Close now, or when the client has had time to read."""
        if not self._connection.leave():
            self._transport.close()


class _Flow(FlowControl):
    """Pauses reading while a request that was read waits for its answer."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection.transport)
        self._connection = connection

    def resume_reading(self) -> None:
        """Read on, unless enough is buffered."""
        if self.read_paused and not (self._connection.pipeline or self._connection.ahead):
            super().resume_reading()


class Connection(HttpToolsProtocol):  # type: ignore[misc]
    """uvicorn's connection, with limits.

    :ivar ahead: what came behind requests that are not answered yet; it is not parsed before they are.
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

    def look(self, now: float) -> None:
        """End the connection where its client keeps the server waiting. Call it about once a second."""
        if self._unheard(now):
            self.transport.abort()
        elif self._refused or self.pipeline or self.transport.is_closing():
            return  # it closes by itself, or the client waits for the server
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
        """Whether the client has had time to read its answer, and has not."""
        if self._left is not None:
            return now - self._left > LEAVE_SECONDS
        unread = self.transport.get_write_buffer_size() > 0
        return unread and now - max(self._began, self._answered) > ANSWER_SECONDS

    @property
    def spare(self) -> tuple[int, float]:
        """The order in which connections are closed: the least first."""
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
        """Begin; where there are too many, close the first in that order."""
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
        """Begin a request; the parser calls it, as it does what follows."""
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
        """Take a header, or one that follows the body."""
        self._unparsed = 0
        self._headers_bytes += len(name) + len(value)
        if self._headers_bytes > LINE_BYTES or len(self.headers) >= HEADERS:
            self._check_headers(len(name) + len(value))
        _uvicorn.on_header(self, name, value)

    def _check_headers(self, length: int) -> None:
        """Refuse too long headers. :raises _Refused: 431. :param length: of the header that came last."""
        if length > LINE_BYTES:
            raise _Refused(_TOO_LARGE, _LONG_HEADER)
        if self._headers_bytes > HEADERS_BYTES:
            raise _Refused(_TOO_LARGE, f"the headers have more than {HEADERS_BYTES} bytes")
        if len(self.headers) >= HEADERS:
            raise _Refused(_TOO_LARGE, f"there are more than {HEADERS} headers")

    def on_headers_complete(self) -> None:
        """Have the request answered, after those before it."""
        self.reading = _BODY
        _uvicorn.on_headers_complete(self)

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
        """Begin with the next request. As uvicorn does, but for a timer for each: :meth:`look` sees who asks nothing."""
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
        """Forget it."""
        self._refused, self.ahead = True, memoryview(b"")
        super().connection_lost(exc)

    def _unsupported_upgrade_warning(self) -> None:
        """Say nothing: a client's wish is no warning."""

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
            self.transport.write(_answer(status, message))
        self._leave()

    def leave(self) -> bool:
        """Close where the client has more to send, when it has had the time to read its answer; whether it has."""
        if self.reading == _BODY and not self.transport.is_closing():
            self._leave()
        return self._left is not None

    def _leave(self) -> None:
        """Say that no more comes, and read on without a use: what is closed with something unread is reset."""
        if self._left is None:
            self._refused, self._left = True, self.loop.time()
            self.flow.resume_reading()
            self.transport.write_eof()


def _answer(status: HTTPStatus, message: str) -> bytes:
    body = json.dumps({"error": message}).encode()
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body
