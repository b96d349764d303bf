"""The calls of inference.GRPCInferenceService, answered by the front: reading, checking, counting and shares are HTTP's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import Any

import grpc
import orjson
from kserve.protocol.grpc import grpc_predict_v2_pb2 as messages

from muster_serving.front import BIG_BODY_BYTES, Front
from muster_serving.rpc.calls import NAME, Context, call_of, check, decoded, forgetting, headers_of, reading
from muster_serving.rpc.messages import metadata_of, response_of, trailers_of
from muster_serving.rpc.streams import Streams

_OPEN = ("ServerLive", "ServerReady", "ModelReady")  # to all, also where tokens are needed, as over HTTP
_UNAVAILABLE = 503
LONG = 2  # long messages that are answered at once: parsed, each is there three times


class Service:
    """The calls of one listener; those that change what is loaded, and all that are not the protocol's, are unimplemented.

    Each is one of a stream to gRPC, which waits for the message of any other before it calls: so who may not ask is refused by
    the metadata alone, and what it sends is not kept.
    """

    def __init__(self, front: Front, streams: Streams) -> None:
        self._front = front
        self._streams = streams
        self._long = asyncio.Semaphore(LONG)

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
                return await answered(context)

        async def answered(context: Context) -> bytes:
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
