"""What all calls of gRPC have in common: who asks, what is asked in HTTP's form, and how an error ends a call."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from traceback import clear_frames
from typing import Any

import grpc
import orjson
from google.protobuf.message import DecodeError

from muster_serving.answer import HttpAnswer
from muster_serving.body import check_length
from muster_serving.clients import RawHeaders
from muster_serving.errors import RequestError
from muster_serving.front import BIG_BODY_BYTES, Read
from muster_serving.routes import ModelPath
from muster_serving.rpc.messages import body_of, status_of, trailers_of

NAME = "inference.GRPCInferenceService"

Context = grpc.aio.ServicerContext

_MOST_INPUTS = 10_000  # each becomes an object, however little it holds


async def decoded(kind: type[Any], data: bytes, context: Context) -> Any:
    """Return a message that gRPC gives as it came. A broken one is the client's fault, and is told so."""
    try:
        return kind.FromString(data)
    except DecodeError:
        await context.abort(
            grpc.StatusCode.INVALID_ARGUMENT, f"the message is not a {kind.__name__} of {NAME}"
        )


def headers_of(context: Context) -> RawHeaders:
    """Return a call's metadata as HTTP has its headers."""
    return [
        (name.encode(), value if isinstance(value, bytes) else value.encode())
        for name, value in context.invocation_metadata() or ()
    ]


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


@contextmanager
def forgetting() -> Iterator[None]:
    """Keep nothing of a call that fails: gRPC holds the error that ends it, and with it all frames that it passed."""
    try:
        yield
    except BaseException as error:
        clear_frames(error.__traceback__)
        raise


async def check(answer: HttpAnswer, context: Context) -> None:
    """End the call where the answer is an error: with the same words as HTTP's."""
    if answer.status != 200:
        said = orjson.loads(answer.body)["error"]
        await context.abort(status_of(answer.status), said, trailers_of(answer))
