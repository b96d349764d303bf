"""The gRPC server of a deployment, on a socket that is already open; it runs in the loop of the HTTP server.

The front answers the calls of inference.GRPCInferenceService: reading, checking, counting and shares are HTTP's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import Any

import orjson
from grpclib.const import Status
from h2.exceptions import ProtocolError

from muster_serving.errors import RequestError
from muster_serving.front import BIG_BODY_BYTES, Front
from muster_serving.rpc import generated as messages
from muster_serving.rpc.calls import NAME, CallError, GrpcCall, call_of, check, decoded, reading, within
from muster_serving.rpc.connections import Connections
from muster_serving.rpc.messages import metadata_of, response_of, status_of, told_of
from muster_serving.rpc.streams import Streams

_ABRUPT_SECONDS = 1.0
_OPEN = ("ServerLive", "ServerReady", "ModelReady")  # to all, also where tokens are needed, as over HTTP
_UNAVAILABLE = 503
_LONG_AT_ONCE = 2  # long messages that are answered at once: parsed, each is there three times

logger = logging.getLogger("muster.serving")


class _Service:
    """The calls of one listener; those that change what is loaded, and all that are not the protocol's, are unimplemented.

    Who may not ask is refused by the metadata alone, and what it sends is not read.
    """

    def __init__(self, front: Front, streams: Streams) -> None:
        self._front = front
        self._streams = streams
        self._long = asyncio.Semaphore(_LONG_AT_ONCE)
        self._replies: dict[str, Callable[[Any, GrpcCall], Awaitable[Any]]] = {
            "ServerLive": self._live,
            "ServerReady": self._ready,
            "ServerMetadata": self._metadata,
            "ModelReady": self._model_ready,
            "ModelMetadata": self._model_metadata,
            "ModelInfer": self._infer,
        }

    async def answer(self, call: GrpcCall) -> None:
        """Answer a call, whatever comes of it."""
        status, said = Status.OK, ""
        try:
            path, seconds = call.read_headers()
            async with asyncio.timeout(seconds):
                await self._answer(path.removeprefix(f"/{NAME}/"), call)
        except CallError as error:
            status, said, call.told = error.status, str(error), error.told
        except RequestError as error:
            status, said = status_of(error.status), str(error)
        except TimeoutError:
            status, said = Status.DEADLINE_EXCEEDED, "the client waits no longer"
        except Exception as error:
            if isinstance(error, ProtocolError) or call.gone:
                return
            logger.exception("a call of gRPC failed")
            status, said = Status.INTERNAL, f"answering failed: {type(error).__name__}"
        with contextlib.suppress(ProtocolError):
            await call.end(status, said)

    async def _answer(self, name: str, call: GrpcCall) -> None:
        if name not in _OPEN and (refusal := self._front.refused(call.headers)):
            check(refusal)
        if name == "ModelStreamInfer":
            await self._streams.answer(call)
        elif reply := self._replies.get(name):
            await self._reply(getattr(messages, f"{name}Request"), reply, call)
        else:
            raise CallError(Status.UNIMPLEMENTED, f"{name!r:.80} is no call of {NAME} that is answered here")

    async def _reply(
        self, kind: type[Any], reply: Callable[[Any, GrpcCall], Awaitable[Any]], call: GrpcCall
    ) -> None:
        data = await within(call.read(self._front.budget))
        if data is None:
            raise CallError(Status.INVALID_ARGUMENT, "the call has no message")
        with self._front.budget.holding() as take:
            take(len(data))
            async with self._long if len(data) > BIG_BODY_BYTES else nullcontext():
                held = [decoded(kind, data)]
                del data
                answer = await reply(held.pop(), call)
        await call.write(answer)

    async def _live(self, _request: Any, _call: GrpcCall) -> Any:
        return messages.ServerLiveResponse(live=True)

    async def _ready(self, _request: Any, _call: GrpcCall) -> Any:
        return messages.ServerReadyResponse(ready=self._front.page("/v2/health/ready").status == 200)

    async def _metadata(self, _request: Any, _call: GrpcCall) -> Any:
        return messages.ServerMetadataResponse(**orjson.loads(self._front.page("/v2").body))

    async def _model_ready(self, request: Any, _call: GrpcCall) -> Any:
        answer = await self._front.describe(call_of(request.name, request.version, "/ready"))
        if answer.status != _UNAVAILABLE:
            check(answer)
        return messages.ModelReadyResponse(ready=answer.status == 200)

    async def _model_metadata(self, request: Any, _call: GrpcCall) -> Any:
        answer = await self._front.describe(call_of(request.name, request.version, ""))
        check(answer)
        return metadata_of(orjson.loads(answer.body))

    async def _infer(self, request: Any, call: GrpcCall) -> Any:
        path = call_of(request.model_name, request.model_version, "/infer")
        answer = await self._front.predict(path, call.headers, reading(request, as_bytes=True))
        check(answer)
        call.told = told_of(answer.headers)
        return response_of(answer)


class GrpcListener:
    """Answers gRPC on a socket.

    :param front: answers, as it does over HTTP.
    """

    def __init__(self, front: Front, public: socket.socket) -> None:
        self._public = public
        self._streams = Streams(front)
        self._connections = Connections(_Service(front, self._streams).answer)

    async def open(self) -> None:
        """Answer users from now on. Idempotent, and possible again after :meth:`drain`."""
        self._streams.stay()
        await self._connections.open(self._public)

    def drain(self) -> None:
        """Accept no more users; those that are connected are told to ask elsewhere. Idempotent."""
        self._connections.drain()
        self._streams.leave()

    async def stop(self, seconds: float) -> None:
        """Accept no more users, and return when those that are there have their answers, or the time is over.

        A gateway keeps a connection on which it was told to ask elsewhere, with nothing under way: it is ended.
        """
        self._public.close()
        self.drain()
        self._connections.send_off()
        ends = [
            asyncio.ensure_future(self._connections.empty.wait()),
            asyncio.ensure_future(self._connections.quiet()),
        ]
        await asyncio.wait(ends, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()
        self._connections.end()  # what is still under way is ended now
        with contextlib.suppress(TimeoutError):  # what was sent is still on its way to clients
            async with asyncio.timeout(_ABRUPT_SECONDS):
                await self._connections.empty.wait()
