"""The connections of gRPC's clients, on a listening socket that another process may hold as well.

A client is sent elsewhere after its next answer, as over HTTP, by HTTP/2's GOAWAY with the greatest stream of all: what it has asked is
answered, and what it asks next it asks on a new connection, which another process may accept. A client of grpcio that is told to go
while it is still connecting does not always notice.

What is not read yet of all calls is bounded by the windows of the connections; a message that is read counts as a body of HTTP.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

from grpclib.config import Configuration
from grpclib.protocol import AbstractHandler, Connection, EventsProcessor, H2Protocol, Stream
from h2 import events
from h2.config import H2Configuration
from h2.connection import H2Connection

from muster_serving.connection import ANSWER_SECONDS, HEAD_SECONDS, IDLE_SECONDS, LEAVE_SECONDS
from muster_serving.rpc.calls import GrpcCall

CONNECTIONS = 500
CALLS = 4000  # of all clients together; each keeps its headers in memory, at most 16 KiB
_WINDOWS_BYTES = 256 << 10  # of a connection; that of a call is HTTP/2's own, 64 KiB
_PIECE_BYTES = 16 << 10  # that much is read before a client that floods is ended
_WITHDRAWN = 100  # calls that one piece takes back: as many as there may be at once
_EMPTY = 5000  # frames a second that ask nothing; gRPC of Go sends a ping for each answer
_GOAWAY = b"\0\0\x08\x07\0\0\0\0\0" + b"\x7f\xff\xff\xff" + b"\0\0\0\0"  # NO_ERROR
_BACKLOG = 2048
_QUIET_SECONDS = 1.0
_LOOK_SECONDS = 0.05

# Headers stay bytes, as they came: no value of theirs ends a connection.
_BYTES = H2Configuration(
    client_side=False,
    header_encoding=None,
    validate_inbound_headers=False,
    normalize_inbound_headers=False,
    validate_outbound_headers=False,
    normalize_outbound_headers=False,
)

_NOTHING = (
    events.PingReceived,
    events.PriorityUpdated,
    events.RemoteSettingsChanged,
    events.UnknownFrameReceived,
)
Reply = Callable[[GrpcCall], Awaitable[None]]


class _Frames(EventsProcessor):  # type: ignore[misc]
    """What the frames of one client say. :ivar empty: how many asked nothing since the last look. :ivar withdrawn: calls of a piece."""

    empty = withdrawn = 0

    def process(self, event: events.Event) -> None:
        """Take one. grpclib calls this; it knows no unknown frames, and takes an empty one of data for the end."""
        empty = isinstance(event, events.DataReceived) and not event.flow_controlled_length
        self.empty += empty or isinstance(event, _NOTHING)
        self.withdrawn += isinstance(event, events.StreamReset)
        if not empty and not isinstance(event, events.UnknownFrameReceived):
            super().process(event)


class _Client(AbstractHandler, H2Protocol):  # type: ignore[misc]
    """One client. grpclib follows its frames and windows.

    :ivar calls: those under way. :ivar heard: when bytes came last.
    """

    def __init__(self, connections: Connections) -> None:
        super().__init__(self, Configuration(), _BYTES)
        self._connections = connections
        self.calls: dict[Stream, asyncio.Task[None]] = {}
        self.heard = self._taken = connections.loop.time()
        self._begun = self._answered = self._sent_off = False

    def connection_made(self, transport: Any) -> None:
        """Begin, with our window, and without grpclib's pings: TCP's keepalive does."""
        self.transport = transport
        frames = H2Connection(_BYTES)
        frames.initiate_connection()
        frames.increment_flow_control_window(_WINDOWS_BYTES - frames.inbound_flow_control_window)
        self.connection = Connection(frames, transport, config=self.config)
        self.connection.flush()
        self.processor = _Frames(self, self.connection)
        self._connections.entered(self)

    def data_received(self, data: bytes) -> None:
        """Read piece by piece, and end a client that floods: it is heard no further."""
        self.heard = self._connections.loop.time()
        for at in range(0, len(data), _PIECE_BYTES):
            if self.transport.is_closing():
                return
            self.processor.withdrawn = 0
            super().data_received(data[at : at + _PIECE_BYTES])
            if self.processor.withdrawn > _WITHDRAWN or self.processor.empty > _EMPTY:
                self.transport.abort()

    def accept(self, stream: Stream, headers: Any, release_stream: Callable[[], Any]) -> None:
        """Answer a call. grpclib calls this, and the next two."""
        self._begun = True
        call = GrpcCall(stream, headers, begins=self.answered, busy=self._connections.calls >= CALLS)
        task = self._connections.loop.create_task(self._connections.answer(call))
        self.calls[stream] = task

        def ended(_: object) -> None:
            self.calls.pop(stream, None)
            release_stream()

        task.add_done_callback(ended)

    def cancel(self, stream: Stream) -> None:
        """End a call whose client wants no more of it."""
        if task := self.calls.get(stream):
            task.cancel()

    def close(self) -> None:
        """End all calls."""
        for task in self.calls.values():
            task.cancel()

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self._connections.left(self)

    @property
    def unsent(self) -> int:
        """How many bytes wait here until they are taken."""
        return int(self.transport.get_write_buffer_size())

    def answered(self) -> None:
        """Note that an answer begins."""
        self._answered = True
        if self._connections.draining:
            self.leave()

    def leave(self, *, unanswered: bool = False) -> None:
        """Tell the client to ask elsewhere from now on; one that was never answered, after its first answer.

        :param unanswered: tell it at once all the same.
        """
        if (self._answered or unanswered) and not self._sent_off and not self.transport.is_closing():
            self._sent_off = True
            self.transport.write(_GOAWAY)

    def look(self, now: float) -> None:
        """End the connection if its client is too slow, or asks nothing for long, once it is told. Call it about once a second."""
        self.processor.empty = 0
        idle = now - self.heard - (IDLE_SECONDS if self._begun else HEAD_SECONDS)
        if not self.unsent:
            self._taken = now
        if now - self._taken > ANSWER_SECONDS:
            self.transport.abort()
        elif not self.calls and idle > 0:
            self.leave(unanswered=True)
            if idle > LEAVE_SECONDS:
                self.transport.close()


class Connections:
    """Accepts clients, and has their calls answered.

    :param answer: answers a call; it raises nothing.
    :ivar empty: set while there is no client.
    """

    def __init__(self, answer: Reply) -> None:
        self.loop = asyncio.get_running_loop()
        self.answer = answer
        self.empty = asyncio.Event()
        self.empty.set()
        self._accepting: asyncio.Server | None = None
        self._clients: set[_Client] = set()
        self._looking: asyncio.Task[None] | None = None

    @property
    def calls(self) -> int:
        """How many calls are under way."""
        return sum(len(client.calls) for client in self._clients)

    @property
    def draining(self) -> bool:
        """Whether clients are to ask elsewhere."""
        return self._accepting is None

    async def open(self, public: socket.socket) -> None:
        """Accept clients from now on. Idempotent, and possible again after :meth:`drain`."""
        if self._accepting is None:
            self._looking = self._looking or self.loop.create_task(self._look())
            accepted = public.dup()
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # a call may wait for long
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, int(IDLE_SECONDS))
            self._accepting = await self.loop.create_server(
                lambda: _Client(self), sock=accepted, backlog=_BACKLOG
            )

    def drain(self) -> None:
        """Accept no more clients, and have those that are there ask elsewhere. Idempotent."""
        accepting, self._accepting = self._accepting, None
        if accepting:
            accepting.close()
            self.send_off(unanswered=False)

    def send_off(self, *, unanswered: bool = True) -> None:
        """Have all that are there ask elsewhere now, also those that were never answered."""
        for client in self._clients:
            client.leave(unanswered=unanswered)

    def entered(self, client: _Client) -> None:
        """Note a new client; if there are too many, end the one that has been silent longest."""
        self._clients.add(client)
        self.empty.clear()
        if len(self._clients) > CONNECTIONS:
            min(self._clients, key=lambda one: one.heard).transport.abort()

    def left(self, client: _Client) -> None:
        """Forget a client."""
        self._clients.discard(client)
        if not self._clients:
            self.empty.set()

    async def quiet(self) -> None:
        """Return once for a second, from now on, no call has been under way, and no byte has come or waited to be taken.

        A client may ask before it reads that it is to go, and a request or an answer may be long on its way.
        """
        began = self.loop.time()
        while self.loop.time() < max([began, *(one.heard for one in self._clients)]) + _QUIET_SECONDS:
            if any(one.calls or one.unsent for one in self._clients):
                began = self.loop.time()
            await asyncio.sleep(_LOOK_SECONDS)  # the pace of looking

    def end(self) -> None:
        """End all connections, and what is under way on them, once what was sent is taken."""
        for client in self._clients:
            client.transport.close()

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(1)
            for client in list(self._clients):
                client.look(self.loop.time())
