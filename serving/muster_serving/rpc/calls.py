"""One call of gRPC: its headers as HTTP has them, its messages, what is asked in HTTP's form, and how an error ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import orjson
from google.protobuf.message import DecodeError
from grpclib.const import Status
from grpclib.metadata import decode_timeout, encode_grpc_message
from grpclib.protocol import Stream
from hpack import NeverIndexedHeaderTuple

from muster_serving.answer import HttpAnswer
from muster_serving.body import MAX_BODY_BYTES, ByteBudget, check_length, read_body
from muster_serving.connection import ANSWER_SECONDS, REQUEST_SECONDS
from muster_serving.errors import RequestError
from muster_serving.front import BIG_BODY_BYTES, Read
from muster_serving.routes import ModelPath
from muster_serving.rpc.messages import Told, body_of, status_of, told_of

NAME = "inference.GRPCInferenceService"

_MOST_INPUTS = 10_000  # each becomes an object, however little it holds
_HEADERS_BYTES = 16 << 10
_HEADER_BYTES = 32  # of each, beside its name and its value (RFC 7541)
_PIECE_BYTES = 64 << 10
_TIMEOUT_BYTES = 9  # a number without end is none
_SLOW = f"no whole message came in {REQUEST_SECONDS:g} seconds"
_UNREAD = f"nothing of an answer was read for {ANSWER_SECONDS:g} s"


class CallError(Exception):
    """Ends a call. :param status: gRPC's. :param told: metadata behind it."""

    def __init__(self, status: Status, said: str, told: Told = ()) -> None:
        super().__init__(said)
        self.status = status
        self.told = told


class GrpcCall:
    """One call of a client.

    :param begins: is called when its answer begins. :param busy: whether too many calls are under way.
    :ivar headers: its metadata. :ivar told: what its client is told behind the answer.
    """

    def __init__(
        self,
        stream: Stream,
        headers: Sequence[tuple[bytes, bytes]],
        *,
        begins: Callable[[], None],
        busy: bool,
    ) -> None:
        self._stream = stream
        self._begins = begins
        self._busy = busy
        self._begun = False
        self.headers = headers
        self.told: Told = ()

    @property
    def gone(self) -> bool:
        """Whether its client is."""
        return bool(self._stream.connection.is_closing())

    def read_headers(self) -> tuple[str, float | None]:
        """Return the path, and after how many seconds its client waits no longer. :raises CallError: it is no call."""
        given = dict(self.headers)
        if self._busy:
            raise CallError(Status.UNAVAILABLE, "this server has too many calls under way: try again")
        if sum(len(name) + len(value) + _HEADER_BYTES for name, value in self.headers) > _HEADERS_BYTES:
            raise CallError(Status.RESOURCE_EXHAUSTED, f"the metadata has more than {_HEADERS_BYTES} bytes")
        if given.get(b":method") != b"POST" or not given.get(b"content-type", b"").startswith(
            b"application/grpc"
        ):
            raise CallError(Status.INTERNAL, "this is no call of gRPC")
        try:
            wait = given.get(b"grpc-timeout", b"")[:_TIMEOUT_BYTES]
            return given.get(b":path", b"").decode("latin-1"), decode_timeout(wait.decode()) if wait else None
        except ValueError:
            raise CallError(Status.INTERNAL, "grpc-timeout: expected up to 8 digits and a unit") from None

    async def read(self, budget: ByteBudget) -> bytes | None:
        """Return the next message as it came, counted while it arrives; None where there is no more.

        :raises RequestError: it is too long, or other messages fill the memory for them. :raises CallError: it is packed, or cut off.
        """
        if not (head := await self._receive(5, begins=True)):
            return None
        left = int.from_bytes(head[1:])
        if head[0]:
            raise CallError(
                Status.UNIMPLEMENTED, "messages are read as they are: send them without compression"
            )

        async def receive() -> dict[str, Any]:
            nonlocal left
            piece = await self._receive(min(left, _PIECE_BYTES))
            left -= len(piece)
            return {"type": "http.request", "body": piece, "more_body": left > 0}

        check_length(left, MAX_BODY_BYTES)
        return await within(read_body({"headers": ()}, receive, budget))

    async def _receive(self, size: int, *, begins: bool = False) -> bytes:
        """Return exactly this number of bytes; none where the stream ends between two messages. :raises CallError: it is cut off."""
        try:
            data: bytes = await self._stream.recv_data(size)
        except AssertionError:  # grpclib's word for an end before the end
            data, begins = b"", False
        if size and not data and not begins:  # grpclib's other one, again and again
            raise CallError(Status.INVALID_ARGUMENT, "the message is cut off")
        return data

    async def write(self, message: Any) -> None:
        """Send a message. :raises CallError: its client reads nothing of it for long."""
        data: bytes = message.SerializeToString()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                if not self._begun:
                    await self._stream.send_headers(_headers())
                    self._begin()
                await self._stream.send_data(b"\0" + len(data).to_bytes(4, "big") + data)
        except TimeoutError:
            raise CallError(Status.UNAVAILABLE, _UNREAD) from None

    async def end(self, status: Status, said: str = "") -> None:
        """Say how it ended."""
        told = [("grpc-status", str(status.value)), ("grpc-message", encode_grpc_message(said)), *self.told]
        # A client says how many headers are kept to be sent shorter: it could say all, and ask for ever new ones.
        ended = [NeverIndexedHeaderTuple(*each) for each in told]
        await self._stream.send_headers([*([] if self._begun else _headers()), *ended], end_stream=True)
        if self._stream.closable:  # its client has more to say
            self._stream.reset_nowait()
        self._begin()

    def _begin(self) -> None:
        self._begun = True
        self._begins()


def _headers() -> list[tuple[str, str]]:
    return [(":status", "200"), ("content-type", "application/grpc")]


async def within(reading: Awaitable[bytes | None]) -> bytes | None:
    """Return what is read of a client, which has a minute for it, as over HTTP. :raises CallError: it takes longer."""
    try:
        async with asyncio.timeout(REQUEST_SECONDS):
            return await reading
    except TimeoutError:
        raise CallError(Status.DEADLINE_EXCEEDED, _SLOW) from None


def decoded(kind: type[Any], data: bytes) -> Any:
    """Return a message that came. :raises CallError: it is broken, which is its client's fault."""
    try:
        return kind.FromString(data)
    except DecodeError:
        said = f"the message is not a {kind.__name__} of {NAME}"
        raise CallError(Status.INVALID_ARGUMENT, said) from None


def call_of(name: str, version: str, verb: str) -> ModelPath:
    """Return the path of HTTP that asks the same: another process may have to answer it."""
    versions = f"/versions/{version}" if version else ""
    return ModelPath(f"/v2/models/{name}{versions}{verb}", verb, revision=version or None, name=name)


def reading(request: Any, *, as_bytes: bool) -> Read:
    """Return what reads a ModelInferRequest for the front, as a body of HTTP.

    :param as_bytes: whether the answer to a request with bytes is to have bytes.
    """

    async def read(most: int) -> tuple[bytes, int | None]:
        size = request.ByteSize()
        check_length(size, most)
        if len(request.inputs) > _MOST_INPUTS:
            raise RequestError(f"found {len(request.inputs)} inputs; no model has more than {_MOST_INPUTS}")
        if size > BIG_BODY_BYTES:  # in a thread, so that small requests need not wait
            body, length = await asyncio.to_thread(body_of, request, as_bytes=as_bytes)
        else:
            body, length = body_of(request, as_bytes=as_bytes)
        check_length(len(body), most)
        return body, length

    return read


def check(answer: HttpAnswer) -> None:
    """End the call where the answer is an error: with the same words as HTTP's. :raises CallError: it is one."""
    if answer.status != 200:
        said = orjson.loads(answer.body)["error"]
        raise CallError(status_of(answer.status), said, told_of(answer.headers))
