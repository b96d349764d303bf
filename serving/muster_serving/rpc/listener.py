"""The gRPC server of a deployment, on a socket that is already open; it runs in the loop of the HTTP server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket

import grpc

from muster_serving.body import MAX_BODY_BYTES
from muster_serving.connection import HEAD_SECONDS, IDLE_SECONDS
from muster_serving.front import Front
from muster_serving.rpc.gate import Gate
from muster_serving.rpc.service import Service
from muster_serving.rpc.streams import Streams

STREAMS = 100  # requests of one client at once; the next ones wait at the client
_ABRUPT_SECONDS = 1.0
_DEAD_SECONDS = 20.0  # a client that takes no ping for so long is gone

_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_BODY_BYTES),
    ("grpc.max_send_message_length", -1),
    ("grpc.compression_enabled_algorithms_bitset", 1),  # none: a message of 14 KiB may be one of 15 MiB
    ("grpc.max_concurrent_streams", STREAMS),
    ("grpc.max_connection_idle_ms", int(IDLE_SECONDS * 1000)),
    ("grpc.keepalive_time_ms", int(IDLE_SECONDS * 1000)),
    ("grpc.keepalive_timeout_ms", int(_DEAD_SECONDS * 1000)),
    ("grpc.server_handshake_timeout_ms", int(HEAD_SECONDS * 1000)),
    ("grpc.max_metadata_size", 16 << 10),
)


class GrpcListener:
    """Answers gRPC on a socket.

    :param front: answers, as it does over HTTP.
    """

    def __init__(self, front: Front, public: socket.socket) -> None:
        logging.getLogger("grpc._cython.cygrpc").addFilter(_is_told)
        self._public = public
        name = f"muster-grpc-{secrets.token_hex(16)}"
        self._gate = Gate(f"\0{name}")
        self._streams = Streams(front, self._gate.taken)
        service = Service(front, self._streams)
        self._server = grpc.aio.server(handlers=[service.handler()], options=_OPTIONS)
        self._server.add_insecure_port(f"unix-abstract:{name}")
        self._started: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Answer users from now on. Idempotent, and possible again after :meth:`drain`."""
        if self._started is None:
            self._started = asyncio.ensure_future(self._server.start())
        await self._started
        self._streams.stay()
        await self._gate.open(self._public)

    def drain(self) -> None:
        """Accept no more users; those that are connected are told to ask elsewhere. Idempotent."""
        self._gate.drain()
        self._streams.leave()

    async def stop(self, seconds: float) -> None:
        """Accept no more users, and return when those that are there have their answers, or the time is over.

        A gateway keeps a connection on which it was told to ask elsewhere, with nothing under way: it is ended.
        """
        self._public.close()
        self.drain()
        self._gate.send_off()
        ends = [
            asyncio.ensure_future(self._gate.empty.wait()),
            asyncio.ensure_future(self._gate.quiet()),
        ]
        await asyncio.wait(ends, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()
        await self._server.stop(_ABRUPT_SECONDS)  # what is still under way is ended now
        with contextlib.suppress(TimeoutError):  # what was sent is still on its way to clients
            async with asyncio.timeout(_ABRUPT_SECONDS):
                await self._gate.empty.wait()


def _is_told(record: logging.LogRecord) -> bool:
    """Whether to log what gRPC says: metadata that is not UTF-8 it would log as it came, and a token with it; and for each
    client that left before it was refused, twenty lines.
    """
    return record.msg not in (
        "Invalid encoding on %s",
        "ExecuteBatchError raised in core by servicer method [%s]",
    )
