"""The calls of inference.GRPCInferenceService, answered by the front: reading, checking, counting and shares are HTTP's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import orjson
from kserve.protocol.grpc import grpc_predict_v2_pb2 as messages

from muster_serving.answer import Answer
from muster_serving.clients import RawHeaders
from muster_serving.front import Front
from muster_serving.rpc.calls import NAME, Context, call_of, check, decoded, headers_of, reading
from muster_serving.rpc.messages import metadata_of, response_of, trailers_of
from muster_serving.rpc.streams import Streams
from muster_serving.rpc.under_way import UnderWay

_OPEN = ("ServerLive", "ServerReady", "ModelReady")  # to all, also where tokens are needed, as over HTTP
_UNAVAILABLE = 503

Answering = Callable[[Any, Context], Awaitable[Any]]


def handler(front: Front, streams: Streams, under_way: UnderWay) -> grpc.GenericRpcHandler:
    """Return the service; its calls that change what is loaded, and all that are not the protocol's, are unimplemented."""
    service = _Service(front)
    calls: dict[str, tuple[type[Any], Answering]] = {
        "ServerLive": (messages.ServerLiveRequest, service.live),
        "ServerReady": (messages.ServerReadyRequest, service.ready),
        "ServerMetadata": (messages.ServerMetadataRequest, service.metadata),
        "ModelReady": (messages.ModelReadyRequest, service.model_ready),
        "ModelMetadata": (messages.ModelMetadataRequest, service.model_metadata),
        "ModelInfer": (messages.ModelInferRequest, service.infer),
    }
    return grpc.method_handlers_generic_handler(
        NAME,
        {
            name: grpc.unary_unary_rpc_method_handler(
                _answering(*call, under_way, refused=(lambda _: None) if name in _OPEN else front.refused)
            )
            for name, call in calls.items()
        }
        | {"ModelStreamInfer": grpc.stream_stream_rpc_method_handler(_streaming(streams, under_way))},
    )


def _streaming(streams: Streams, under_way: UnderWay) -> Callable[[Any, Context], Awaitable[None]]:
    async def answered(requests: Any, context: Context) -> None:
        with under_way.call():
            await streams.answer(requests, context)

    return answered


def _answering(
    kind: type[Any],
    answer: Answering,
    under_way: UnderWay,
    *,
    refused: Callable[[RawHeaders], Answer | None],
) -> Callable[[bytes, Context], Awaitable[bytes]]:
    """Read a call's message, which gRPC gives as it came, once its client may ask.

    :param refused: returns the refusal of a call with such metadata, or None.
    """

    async def answered(data: bytes, context: Context) -> bytes:
        with under_way.call():
            if refusal := refused(headers_of(context)):
                await check(refusal, context)
            request = await decoded(kind, data, context)
            found: bytes = (await answer(request, context)).SerializeToString()
            return found

    return answered


class _Service:
    def __init__(self, front: Front) -> None:
        self._front = front

    async def live(self, _request: Any, _context: Context) -> Any:
        return messages.ServerLiveResponse(live=True)

    async def ready(self, _request: Any, _context: Context) -> Any:
        return messages.ServerReadyResponse(ready=self._front.page("/v2/health/ready").status == 200)

    async def metadata(self, _request: Any, _context: Context) -> Any:
        return messages.ServerMetadataResponse(**orjson.loads(self._front.page("/v2").body))

    async def model_ready(self, request: Any, context: Context) -> Any:
        answer = await self._front.describe(call_of(request.name, request.version, "/ready"))
        if answer.status != _UNAVAILABLE:
            await check(answer, context)
        return messages.ModelReadyResponse(ready=answer.status == 200)

    async def model_metadata(self, request: Any, context: Context) -> Any:
        answer = await self._front.describe(call_of(request.name, request.version, ""))
        await check(answer, context)
        return metadata_of(orjson.loads(answer.body))

    async def infer(self, request: Any, context: Context) -> Any:
        call = call_of(request.model_name, request.model_version, "/infer")
        answer = await self._front.predict(call, headers_of(context), reading(request, as_bytes=True))
        await check(answer, context)
        context.set_trailing_metadata(trailers_of(answer))
        return response_of(answer)
