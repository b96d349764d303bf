"""ModelStreamInfer: the requests of one stream, one after the other, each answered in parts as they are computed.

The protocol's own definition has no such call. This one is Triton's, with its messages
(https://github.com/triton-inference-server/common/blob/main/protobuf/grpc_service.proto) and its parameters of decoupled models
(https://github.com/triton-inference-server/server/blob/main/docs/user_guide/decoupled_models.md), whose clients call it.

A request is one of ``/generate_stream`` over HTTP, and the front answers it in HTTP's events; each of them becomes a message here. An
error of one request is a message, too, and the stream goes on; who may not ask any more loses the stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import orjson
from grpclib.const import Status

from muster_serving.answer import Headers, HttpAnswer
from muster_serving.events import of_event
from muster_serving.front import Front
from muster_serving.routes import STREAM
from muster_serving.rpc import generated as messages
from muster_serving.rpc.calls import CallError, GrpcCall, call_of, check, decoded, reading
from muster_serving.rpc.messages import Told, part_of, told_of

QUIET_SECONDS = 1.0  # a stream of a server that drains ends when no request came for so long
LEAVE_SECONDS = 5.0  # and between two answers after so long, whatever comes
_WANTS_FINAL, _FINAL = "triton_enable_empty_final_response", "triton_final_response"
_UNAUTHENTICATED = 401


class Streams:
    """The streams of one socket."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._leaving = asyncio.Event()
        self._until = 0.0

    def stay(self) -> None:
        """Answer requests as long as clients like."""
        self._leaving.clear()

    def leave(self) -> None:
        """End each stream once what its client has sent is answered, or soon. Idempotent."""
        if not self._leaving.is_set():
            self._until = asyncio.get_running_loop().time() + LEAVE_SECONDS
            self._leaving.set()

    async def answer(self, call: GrpcCall) -> None:
        """Answer one stream, whose client may ask. :raises CallError: it ends otherwise than by its client."""
        while (data := await self._next(call)) is not None:
            with self._front.budget.holding() as take:
                take(len(data))
                await self._answer_one(call, data)
            del data

    async def _answer_one(self, call: GrpcCall, data: bytes) -> None:
        request = decoded(messages.ModelInferRequest, data)
        path = call_of(request.model_name, request.model_version, STREAM)
        parts = _Parts(request, call)
        try:
            answer = await self._front.predict(path, call.headers, reading(request, as_bytes=False), parts)
        except asyncio.CancelledError:
            if parts.unread is None:
                raise
            raise parts.unread from None  # it is told so once it reads on
        if answer.status == _UNAUTHENTICATED:  # the token was ended meanwhile
            check(answer)
        await parts.finish(answer)

    async def _next(self, call: GrpcCall) -> bytes | None:
        """Return the next request, as it came; None where the client has no more."""
        if not self._over():
            message = asyncio.ensure_future(call.read(self._front.budget))
            leaving = asyncio.ensure_future(self._leaving.wait())
            try:
                await asyncio.wait({message, leaving}, return_when=asyncio.FIRST_COMPLETED)
                await asyncio.wait({message}, timeout=QUIET_SECONDS)
                if message.done():
                    return message.result()
            finally:
                leaving.cancel()
                message.cancel()
        raise CallError(Status.UNAVAILABLE, "this model server ends: ask on a new stream what has no answer")

    def _over(self) -> bool:
        return self._leaving.is_set() and asyncio.get_running_loop().time() >= self._until


class _Parts:
    """Sends the events of one answer as messages: an :class:`~muster_serving.events.Outlet`.

    :ivar unread: how the call ends where the client read nothing for so long that it counts as one that left, as over HTTP.
    """

    def __init__(self, request: Any, call: GrpcCall) -> None:
        self._call = call
        self._raw = bool(request.raw_input_contents)
        self._final = _WANTS_FINAL in request.parameters and request.parameters[_WANTS_FINAL].bool_param
        self._last = messages.ModelInferResponse(model_name=request.model_name, id=request.id)
        self._told: Told = ()
        self._rest = bytearray()
        self._failed = False
        self.unread: CallError | None = None

    async def begin(self, headers: Headers) -> None:
        self._told = told_of(headers)

    async def put(self, data: bytes) -> None:
        begin = max(len(self._rest) - 1, 0)
        self._rest += data
        while (end := self._rest.find(b"\n\n", begin)) >= 0:
            document, begin = of_event(bytes(self._rest[:end])), 0
            del self._rest[: end + 2]
            await self._send(document)

    async def while_there(self, sending: Coroutine[Any, Any, HttpAnswer]) -> HttpAnswer:
        """Return what `sending` returns: where the client leaves, or the server ends, this task is cancelled."""
        return await sending

    async def finish(self, answer: HttpAnswer) -> None:
        """Send what was not sent as events: a whole answer or an error; and the last message, if its client wants one."""
        if not answer.sent:
            self._told = told_of(answer.headers)
            await self._send(answer.body)
        if self._final and not self._failed:
            self._last.parameters[_FINAL].bool_param = True
            await self._write(infer_response=self._last)

    async def _send(self, document: bytes) -> None:
        """Send a part, or an error."""
        found = orjson.loads(document)
        if "error" in found:
            self._failed = True
            response = messages.ModelInferResponse(id=self._last.id)  # so that the client knows what failed
            self._tell(response)
            await self._write(error_message=found["error"], infer_response=response)
            return
        response = part_of(found, raw=self._raw)
        self._last.model_version = response.model_version
        response.parameters[_FINAL].bool_param = False
        self._tell(response)
        await self._write(infer_response=response)

    def _tell(self, response: Any) -> None:
        for name, value in self._told:
            response.parameters[name].string_param = value

    async def _write(self, **fields: Any) -> None:
        try:
            await self._call.write(messages.ModelStreamInferResponse(**fields))
        except CallError as error:
            self.unread = error
            raise asyncio.CancelledError from None  # so that all of the request ends, as where a client leaves
