"""Accepts gRPC's clients on a socket that another process may hold as well, and carries their bytes to gRPC's own.

gRPC binds its sockets itself: it takes none that is open, and a second process on the same port by SO_REUSEPORT loses
the clients that wait at a socket when that one is closed. So this process accepts, as for HTTP, and hands each client's
bytes to gRPC over a Unix socket that has no name in the file system.

A client is sent elsewhere after its next answer, as over HTTP, by HTTP/2's GOAWAY with the greatest stream of all, between two
frames of gRPC's: what it has asked is answered, and what it asks next it asks on a new connection, which another process
may accept. gRPC's own end of a server would drop what arrives at that moment; and a client of gRPC's that is told to go while
it is still connecting does not always notice.

gRPC keeps what comes of each message until its call ends, and its Python has no limit for all of them together. The gate has: it
follows the frames of both directions, counts what the calls under way have sent, and ends the connection that holds most.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import cast

from muster_serving.body import MAX_HELD_BYTES
from muster_serving.connection import ANSWER_SECONDS

CONNECTIONS = 500
HELD_BYTES = MAX_HELD_BYTES  # of messages on the wire; each that is read is in memory twice
_CALL_BYTES = 16 << 10  # what a call counts beside its messages: so much metadata is taken
_PREFACE_BYTES = 24
_HEAD_BYTES = 9
_DATA, _HEADERS, _RESET = 0, 1, 3
_LAST = 1  # the flag of a frame that ends its side of a call
_GOAWAY = b"\0\0\x08\x07\0\0\0\0\0" + b"\x7f\xff\xff\xff" + b"\0\0\0\0"  # NO_ERROR
_BACKLOG = 2048
_QUIET_SECONDS = 1.0
_LOOK_SECONDS = 0.05


class Frames:
    """Follows the frames of HTTP/2 in bytes that pass.

    :param seen: is told of each frame its kind, flags, call and length.
    :param left: how many bytes come before the first frame.
    """

    def __init__(self, seen: Callable[[int, int, int, int], None], *, left: int = 0) -> None:
        self._seen = seen
        self._begun = False
        self._left = left
        self._head = b""

    @property
    def between(self) -> bool:
        """Whether the next byte begins a frame, and is not the first."""
        return self._begun and not (self._left or self._head)

    def passed(self, data: bytes) -> None:
        """Follow the next bytes."""
        self._begun = True
        if self._head:
            data = self._head + data
        at = self._left
        while at + _HEAD_BYTES <= len(data):
            length = int.from_bytes(data[at : at + 3])
            self._seen(data[at + 3], data[at + 4], int.from_bytes(data[at + 5 : at + 9]), length)
            at += _HEAD_BYTES + length
        self._head, self._left = (data[at:], 0) if at < len(data) else (b"", at - len(data))


class _End(asyncio.Protocol):
    """One end of a connection; what it receives the other end sends."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.other: _End | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport is no subclass of asyncio.Transport
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self.other and self.other.transport:
            self.other.transport.write(data)

    @property
    def unsent(self) -> bool:
        """Whether bytes wait here until they are taken."""
        return self.transport is not None and self.transport.get_write_buffer_size() > 0

    def pause_writing(self) -> None:
        if self.other and self.other.transport:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other and self.other.transport:
            self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 asyncio's interface
        self.transport = None
        if self.other and self.other.transport:
            self.other.transport.close()


class _Server(_End):
    """The end at gRPC."""

    def __init__(self, client: _GateClient) -> None:
        super().__init__()
        self.other = client
        self._client = client
        self._frames = Frames(self._seen)
        self._answered = False
        self._leaving = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._client.connected(self)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._client.note_bytes()
        self._frames.passed(data)
        if self._leaving:
            self.leave()

    def _seen(self, kind: int, flags: int, call: int, _length: int) -> None:
        self._answered = self._answered or kind == _HEADERS
        if kind == _RESET or (kind in (_HEADERS, _DATA) and flags & _LAST):
            self._client.ended(call)

    def leave(self, *, unanswered: bool = False) -> None:
        """Tell the client to ask elsewhere from now on; one that was never answered, after its first answer.

        :param unanswered: tell it at once all the same.
        """
        self._leaving = not (self._frames.between and (self._answered or unanswered))
        if not self._leaving:
            super().data_received(_GOAWAY)


class _GateClient(_End):
    """The end at a client.

    :ivar calls: what each that is under way holds in gRPC's memory. :ivar held: what all do.
    :ivar peer: what gRPC says of whose call one of them is.
    """

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self.peer = ""
        self._gate = gate
        self.server = _Server(self)
        self.heard = 0.0
        self.held = 0
        self.calls: dict[int, int] = {}
        self._newest = 0
        self._frames = Frames(self._seen, left=_PREFACE_BYTES)
        self._early = b""
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._gate.entered(self)

    def data_received(self, data: bytes) -> None:
        self.heard = self._gate.loop.time()
        self.note_bytes()
        self._frames.passed(data)
        if self.other:
            super().data_received(data)
        else:  # uvloop reads at once, whatever was told to its transport
            self._early += data

    def _seen(self, kind: int, _flags: int, call: int, length: int) -> None:
        if kind == _HEADERS and call > self._newest:
            self._newest, self.calls[call], length = call, 0, _CALL_BYTES
        if kind in (_HEADERS, _DATA) and call in self.calls:
            self.calls[call] += length
            self._gate.hold(self, length)
        elif kind == _RESET:
            self.ended(call)

    def ended(self, call: int) -> None:
        """Count a call no more: gRPC forgets it."""
        self._gate.hold(self, -self.calls.pop(call, 0))

    def note_bytes(self) -> None:
        """Note that bytes pass, in either direction."""
        self._gate.passed = self._gate.loop.time()

    def pause_writing(self) -> None:
        """Wait for a client that does not read its answers as long as over HTTP."""
        super().pause_writing()
        if self.transport:
            self._unread = self._gate.loop.call_later(ANSWER_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._reads()

    def _reads(self) -> None:
        if self._unread:
            self._unread.cancel()
            self._unread = None

    def connected(self, server: _Server) -> None:
        """Hand over what came before there was a reader to hand it to."""
        self.other = server
        super().data_received(self._early)
        self._early = b""

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._reads()
        self._gate.left(self)


class Gate:
    """Hands clients to the gRPC server behind a Unix socket.

    :param behind: that socket's address.
    :ivar empty: set while there is no client.
    :ivar passed: when bytes passed last, by the clock of the loop.
    """

    def __init__(self, behind: str) -> None:
        self._held = self._number = 0
        self._named: dict[str, _GateClient] = {}  # by what gRPC says of whose call it is
        self.loop = asyncio.get_running_loop()
        self.empty = asyncio.Event()
        self.empty.set()
        self.passed = 0.0
        self._behind = behind
        self._accepting: asyncio.Server | None = None
        self._clients: set[_GateClient] = set()
        self._connecting: set[asyncio.Task[None]] = set()

    async def open(self, public: socket.socket) -> None:
        """Accept clients from now on. Idempotent, and possible again after :meth:`drain`."""
        if self._accepting is None:
            accepted = public.dup()
            self._accepting = await self.loop.create_server(
                lambda: _GateClient(self), sock=accepted, backlog=_BACKLOG
            )

    def drain(self) -> None:
        """Accept no more clients, and have those that are there ask elsewhere. Idempotent."""
        accepting, self._accepting = self._accepting, None
        if accepting:
            accepting.close()
            for client in self._clients:
                client.server.leave()

    def entered(self, client: _GateClient) -> None:
        """Connect a new client; if there are too many, end the one that has been silent longest."""
        self._number += 1
        client.peer = f"unix-abstract:{self._behind[1:]}-{self._number}"
        self._named[client.peer] = client
        self._clients.add(client)
        self.empty.clear()
        client.heard = self.loop.time()
        if len(self._clients) > CONNECTIONS:
            silent = min(self._clients, key=lambda one: one.heard)
            if silent.transport:
                silent.transport.abort()
        task = self.loop.create_task(self._connect(client))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    def hold(self, client: _GateClient, length: int) -> None:
        """Count what a client's calls hold more, or less; where all hold too much, end the client that holds most."""
        client.held += length
        self._held += length
        if length > 0 and self._held > HELD_BYTES:
            most = max(self._clients, key=lambda one: one.held)
            if most.transport:
                most.transport.abort()

    def taken(self, peer: str, length: int) -> None:
        """Count less of a client, some of whose calls' messages are answered; more, once such a call is over.

        :param peer: what gRPC says of whose call it is.
        """
        if client := self._named.get(peer):
            self.hold(client, -length)

    def left(self, client: _GateClient) -> None:
        """Forget a client."""
        self._clients.discard(client)
        self._named.pop(client.peer, None)
        self.hold(client, -client.held)
        if not self._clients:
            self.empty.set()

    async def quiet(self) -> None:
        """Return once for a second, from now on, no call has been under way, and no byte has passed or waited to be taken.

        A client may ask before it reads that it is to go, and a request or an answer may be long on its way.
        """
        began = self.loop.time()
        while self.loop.time() < max(began, self.passed) + _QUIET_SECONDS:
            if any(one.calls or one.unsent or one.server.unsent for one in self._clients):
                began = self.loop.time()
            await asyncio.sleep(_LOOK_SECONDS)  # the pace of looking

    def send_off(self) -> None:
        """Have all that are still there ask elsewhere now, also those that were never answered."""
        for client in self._clients:
            client.server.leave(unanswered=True)

    async def _connect(self, client: _GateClient) -> None:
        behind = socket.socket(socket.AF_UNIX)
        behind.setblocking(False)
        try:
            behind.bind(f"\0{client.peer.partition(':')[2]}")
            behind.connect(self._behind)  # at once, or not at all: gRPC has a backlog
            await self.loop.create_unix_connection(lambda: client.server, sock=behind)
        except OSError:
            behind.close()
            if client.transport:
                client.transport.abort()
            return
        if self._accepting is None:
            client.server.leave()
        if client.transport is None and client.server.transport:  # it is gone already
            client.server.transport.close()
