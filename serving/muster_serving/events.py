"""Answers in parts: server-sent events to one client, as fast as it reads them, until it leaves.

Each event is one answer of the Open Inference Protocol as JSON, as MLServer's are
(https://docs.seldon.ai/mlserver/user-guide/streaming). The path, and ``{"error": …}`` as the last event where something went
wrong after the first, are also those of Triton's generate extension
(https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_generate.md), whose requests are plainer.
What goes wrong before the first event is an error like any other, with its status.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, MutableMapping
from contextlib import aclosing
from typing import Any, Protocol

from muster_serving.answer import CLIENT_LEFT, Headers, HttpAnswer, refusal
from muster_serving.body import Receive
from muster_serving.column import Array
from muster_serving.errors import WRITING, PredictionError, RequestError

TYPE = b"text/event-stream"
EVENTS: Headers = ((b"content-type", TYPE + b"; charset=utf-8"), (b"cache-control", b"no-cache"))

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_CLIENT_GONE = HttpAnswer(CLIENT_LEFT, b"", sent=True)
_CUT = refusal("the model server ended before the answer was whole: ask again", 503).body


def event(document: bytes) -> bytes:
    """Return JSON, which has no line break, as an event."""
    return b"data: " + document + b"\n\n"


def of_event(data: bytes) -> bytes:
    """Return the JSON of an event, without the blank line after it."""
    return data.removeprefix(b"data: ")


async def written(
    parts: AsyncGenerator[dict[str, Array], None],
    write: Callable[[Mapping[str, Array]], tuple[bytes, Headers]],
) -> AsyncGenerator[bytes, None]:
    """Yield each part as an event; closes the parts with itself.

    :param write: of the request that is answered (:class:`.protocol.InferenceRequest`).
    """
    async with aclosing(parts):
        async for part in parts:
            with WRITING:
                each = event(write(part)[0])
            yield each


def one_event(answer: HttpAnswer) -> HttpAnswer:
    """Return the answer of a model that does not stream, as a stream of one event."""
    named = tuple(header for header in answer.headers if header[0] != b"content-type")
    return answer._replace(body=event(answer.body), headers=EVENTS + named)


class Outlet(Protocol):
    """Where the events of one answer go: a client of HTTP's, or of gRPC's."""

    async def begin(self, headers: Headers) -> None:
        """Take the answer's headers; its status is 200 from here on."""

    async def put(self, data: bytes) -> None:
        """Send some bytes of the events, which need not end with one. Waits while the client has not read those before."""

    async def while_there(self, sending: Coroutine[Any, Any, HttpAnswer]) -> HttpAnswer:
        """Return what `sending` returns, and end it where the client leaves.

        :returns: one with ``CLIENT_LEFT``, where the client left and this task goes on.
        """


class Connected:
    """The connection of a client of HTTP's that is answered in events: an :class:`Outlet`.

    :param closing: whether the connection ends with the answer.
    """

    def __init__(self, receive: Receive, send: Send, *, closing: bool) -> None:
        self._receive = receive
        self._send = send
        self._closing = closing
        self._begun = False

    async def begin(self, headers: Headers) -> None:
        """Send the status, which is 200 from here on, and the headers."""
        self._begun = True
        close = [(b"connection", b"close")] if self._closing else []
        await self._send({"type": "http.response.start", "status": 200, "headers": [*headers, *close]})

    async def put(self, data: bytes) -> None:
        """Send some bytes. Waits while the client has not read those before."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self) -> None:
        """End the answer; it is counted before, so that a client that has all of it finds it in the metrics."""
        await self._send({"type": "http.response.body", "body": b""})

    async def while_there(self, sending: Coroutine[Any, Any, HttpAnswer]) -> HttpAnswer:
        """Return what `sending` returns; where the client leaves, end it, and return an answer with ``CLIENT_LEFT``.

        The request's body must have been read. Where this server ends first, the last event says so.
        """
        work, leaving = asyncio.ensure_future(sending), asyncio.ensure_future(self._gone())
        try:
            await asyncio.wait({work, leaving}, return_when=asyncio.FIRST_COMPLETED)
            return work.result() if work.done() else _CLIENT_GONE
        except asyncio.CancelledError:
            await _ended(work)
            if self._begun:
                await self.put(event(_CUT))
                await self.end()
            raise
        finally:
            await _ended(work, leaving)

    async def _gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            continue


async def send_events(
    events: AsyncGenerator[bytes, None],
    out: Outlet,
    headers: Headers,
    *,
    failed: Callable[[PredictionError], HttpAnswer],
) -> HttpAnswer:
    """Send events as they come, and return an answer that is sent but for its end: :meth:`Outlet.while_there` the client is.

    The events are closed in any case.

    :param failed: notes that the model failed, and returns the error as an answer.
    :raises RequestError, PredictionError: from the events, before the first of them.
    """
    answer = HttpAnswer(200, b"")
    async with aclosing(events):
        first = await anext(events)
        await out.begin(headers)
        await out.put(first)
        try:
            async for each in events:
                await out.put(each)
        except PredictionError as error:
            answer = failed(error)
        except RequestError as error:
            answer = refusal(str(error), error.status)
        if answer.body:
            await out.put(event(answer.body))
    return answer._replace(sent=True)


async def _ended(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks, and return when they are over."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
