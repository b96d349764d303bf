"""The connections of clients: how many there are, and how long and large the head of a request may be.

uvicorn waits for a head for ever, and takes one of any length. Whenever a connection is made, those that have waited too long
for a head are closed, and where there are too many the one that has waited longest.
"""

from __future__ import annotations

import asyncio
import resource
import time
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES = 16 << 10
HEAD_SECONDS = 10.0
IDLE_SECONDS = 60.0  # after an answer; also for the rest of a body that was refused
CONNECTIONS = 4000


def most_connections(*, files: int = 2) -> int:
    """Return how many connections there may be, where each may take so many of the files that this process may open."""
    return max(1, min(CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // files))


class ClientConnections:
    """An application and its clients' connections. :ivar open: those that wait, the longest first; others between them."""

    def __init__(self, app: ASGIApp, *, most: int) -> None:
        self._app, self.most = app, most
        self.open: dict[object, ClientConnection] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; meanwhile its connection does not give way to others."""
        client = self.open.get((scope.get("client"), scope.get("server")))
        if client is not None:
            client.due, client.head_bytes = None, 0
        await self._app(scope, receive, send)
        if client is not None and client.key in self.open:
            client.due = time.monotonic() + IDLE_SECONDS
            self.open[client.key] = self.open.pop(client.key)


class ClientConnection(HttpToolsProtocol):
    """One connection of uvicorn's to :class:`ClientConnections`. :ivar due: when a head has to be whole; None while one is answered."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._clients: ClientConnections = named["config"].app
        self.due: float | None = time.monotonic() + HEAD_SECONDS
        self.head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin; close connections that are overdue, and the one that waits longest, or this one, if there are too many."""
        super().connection_made(transport)
        self.key = self.client, self.server
        self._clients.open[self.key] = self
        over, now = len(self._clients.open) - self._clients.most, time.monotonic()
        for each in [each for each in self._clients.open.values() if each.due is not None]:
            if over > 0 or (each.due or now) < now:
                each.transport.abort()
            over -= 1

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._clients.open.pop(self.key, None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse, and end the connection if much comes that is not of a body: a head, trailers, sizes of chunks."""
        self.head_bytes += len(data)
        super().data_received(data)
        if self.head_bytes > HEAD_BYTES:
            self.transport.abort()

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body."""
        self.head_bytes = 0
        super().on_body(body)
