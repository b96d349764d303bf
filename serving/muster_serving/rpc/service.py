"""The calls of inference.GRPCInferenceService, answered by the front: reading, checking, counting and shares are HTTP's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import orjson
from google.protobuf.message import DecodeError
from kserve.protocol.grpc import grpc_predict_v2_pb2 as messages

from muster_serving.answer import Answer
from muster_serving.body import check_length
from muster_serving.clients import RawHeaders
from muster_serving.errors import RequestError
from muster_serving.front import BIG_BODY_BYTES, Front
from muster_serving.routes import Call
from muster_serving.rpc.messages import body_of, metadata_of, response_of, status_of, trailers_of

NAME = "inference.GRPCInferenceService"

_OPEN = ("ServerLive", "ServerReady", "ModelReady")  # to all, also where tokens are needed, as over HTTP
_UNAVAILABLE = 503
_MOST_INPUTS = 10_000  # each becomes an object, however little it holds

Context = grpc.aio.ServicerContext
Answering = Callable[[Any, Context], Awaitable[Any]]


def handler(front: Front) -> grpc.GenericRpcHandler:
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
                _answering(*call, refused=(lambda _: None) if name in _OPEN else front.refused)
            )
            for name, call in calls.items()
        }
        | {"ModelStreamInfer": grpc.stream_stream_rpc_method_handler(_no_parts)},
    )


def _answering(
    kind: type[Any], answer: Answering, *, refused: Callable[[RawHeaders], Answer | None]
) -> Callable[[bytes, Context], Awaitable[bytes]]:
    """Read a call's message, which gRPC gives as it came, once its client may ask.

    A broken message is the client's fault, and is told so.

    :param refused: returns the refusal of a call with such metadata, or None.
    """

    async def answered(data: bytes, context: Context) -> bytes:
        if refusal := refused(_headers(context)):
            await _check(refusal, context)
        try:
            request = kind.FromString(data)
        except DecodeError:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"the message is not a {kind.__name__} of {NAME}",
            )
        found: bytes = (await answer(request, context)).SerializeToString()
        return found

    return answered


async def _no_parts(_requests: Any, context: Context) -> None:
    """Refuse answers in parts by name: Triton's and MLServer's calls of that name have different messages."""
    await context.abort(
        grpc.StatusCode.UNIMPLEMENTED,
        "ModelInfer answers all parts joined; they come one by one over HTTP: POST /v2/models/NAME/generate_stream",
    )


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
        answer = await self._front.describe(_call(request.name, request.version, "/ready"))
        if answer.status != _UNAVAILABLE:
            await _check(answer, context)
        return messages.ModelReadyResponse(ready=answer.status == 200)

    async def model_metadata(self, request: Any, context: Context) -> Any:
        answer = await self._front.describe(_call(request.name, request.version, ""))
        await _check(answer, context)
        return metadata_of(orjson.loads(answer.body))

    async def infer(self, request: Any, context: Context) -> Any:
        async def read(most: int) -> tuple[bytes, int | None]:
            size = request.ByteSize()
            check_length(size, most)
            if len(request.inputs) > _MOST_INPUTS:
                raise RequestError(
                    f"found {len(request.inputs)} inputs; no model has more than {_MOST_INPUTS}"
                )
            # in a thread, so that small requests need not wait
            body, length = (
                await asyncio.to_thread(body_of, request) if size > BIG_BODY_BYTES else body_of(request)
            )
            check_length(len(body), most)
            return body, length

        call = _call(request.model_name, request.model_version, "/infer")
        answer = await self._front.predict(call, _headers(context), read)
        await _check(answer, context)
        context.set_trailing_metadata(trailers_of(answer))
        return response_of(answer)


def _call(name: str, version: str, verb: str) -> Call:
    """Return the path of HTTP that asks the same: another process may have to answer it."""
    versions = f"/versions/{version}" if version else ""
    return Call(f"/v2/models/{name}{versions}{verb}", verb, revision=version or None, name=name)


def _headers(context: Context) -> RawHeaders:
    """Return a call's metadata as HTTP has its headers."""
    return [
        (name.encode(), value if isinstance(value, bytes) else value.encode())
        for name, value in context.invocation_metadata() or ()
    ]


async def _check(answer: Answer, context: Context) -> None:
    """End the call where the answer is an error: with the same words as HTTP's."""
    if answer.status != 200:
        said = orjson.loads(answer.body)["error"]
        await context.abort(status_of(answer.status), said, trailers_of(answer))
