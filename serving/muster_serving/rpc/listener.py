"""The gRPC server of a deployment, on a socket that is already open; it runs in the loop of the HTTP server.

The front answers the calls of inference.GRPCInferenceService: reading, checking, counting and shares are HTTP's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import Any

import grpc
import orjson

from muster_serving.body import MAX_BODY_BYTES
from muster_serving.connection import HEAD_SECONDS, IDLE_SECONDS
from muster_serving.front import BIG_BODY_BYTES, Front
from muster_serving.rpc import generated as messages
from muster_serving.rpc.calls import NAME, Context, call_of, check, decoded, forgetting, headers_of, reading
from muster_serving.rpc.gate import Gate
from muster_serving.rpc.messages import metadata_of, response_of, trailers_of
from muster_serving.rpc.streams import Streams

STREAMS = 100  # requests of one client at once; the next ones wait at the client
_ABRUPT_SECONDS = 1.0
_DEAD_SECONDS = 20.0  # a client that takes no ping for so long is gone

_OPEN = ("ServerLive", "ServerReady", "ModelReady")  # to all, also where tokens are needed, as over HTTP
_UNAVAILABLE = 503
_LONG_AT_ONCE = 2  # long messages that are answered at once: parsed, each is there three times

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


class _Service:
    """The calls of one listener; those that change what is loaded, and all that are not the protocol's, are unimplemented.

    Each is one of a stream to gRPC, which waits for the message of any other before it calls: so who may not ask is refused by
    the metadata alone, and what it sends is not kept.
    """

    def __init__(self, front: Front, streams: Streams) -> None:
        self._front = front
        self._streams = streams
        self._long = asyncio.Semaphore(_LONG_AT_ONCE)

    def handler(self) -> grpc.GenericRpcHandler:
        """Return what gRPC calls."""
        replies = {
            "ServerLive": self._live,
            "ServerReady": self._ready,
            "ServerMetadata": self._metadata,
            "ModelReady": self._model_ready,
            "ModelMetadata": self._model_metadata,
            "ModelInfer": self._infer,
        }
        calls = {
            name: grpc.stream_unary_rpc_method_handler(self._unary(name, reply))
            for name, reply in replies.items()
        }
        calls["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(self._stream)
        return grpc.method_handlers_generic_handler(NAME, calls)

    async def _stream(self, requests: Any, context: Context) -> None:
        with forgetting():
            await self._streams.answer(requests, context)

    def _unary(
        self, name: str, reply: Callable[[Any, Context], Awaitable[Any]]
    ) -> Callable[[Any, Context], Awaitable[bytes]]:
        kind, is_open = getattr(messages, f"{name}Request"), name in _OPEN

        async def call(_requests: Any, context: Context) -> bytes:
            with forgetting():
                return await read_and_reply(context)

        async def read_and_reply(context: Context) -> bytes:
            if not is_open and (refusal := self._front.refused(headers_of(context))):
                await check(refusal, context)
            data = await context.read()
            if data is grpc.aio.EOF:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the call has no message")
            async with self._long if len(data) > BIG_BODY_BYTES else nullcontext():
                held = [await decoded(kind, data, context)]
                del data  # once its client is told the end, the gate counts it no more
                found: bytes = (await reply(held.pop(), context)).SerializeToString()
                return found

        return call

    async def _live(self, _request: Any, _context: Context) -> Any:
        return messages.ServerLiveResponse(live=True)

    async def _ready(self, _request: Any, _context: Context) -> Any:
        return messages.ServerReadyResponse(ready=self._front.page("/v2/health/ready").status == 200)

    async def _metadata(self, _request: Any, _context: Context) -> Any:
        return messages.ServerMetadataResponse(**orjson.loads(self._front.page("/v2").body))

    async def _model_ready(self, request: Any, context: Context) -> Any:
        answer = await self._front.describe(call_of(request.name, request.version, "/ready"))
        if answer.status != _UNAVAILABLE:
            await check(answer, context)
        return messages.ModelReadyResponse(ready=answer.status == 200)

    async def _model_metadata(self, request: Any, context: Context) -> Any:
        answer = await self._front.describe(call_of(request.name, request.version, ""))
        await check(answer, context)
        return metadata_of(orjson.loads(answer.body))

    async def _infer(self, request: Any, context: Context) -> Any:
        call = call_of(request.model_name, request.model_version, "/infer")
        answer = await self._front.predict(call, headers_of(context), reading(request, as_bytes=True))
        del request
        await check(answer, context)
        context.set_trailing_metadata(trailers_of(answer))
        return response_of(answer)


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
        service = _Service(front, self._streams)
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
