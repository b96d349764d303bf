"""Passes an answer that comes in events on from another process of this machine, piece by piece."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import httptools

from muster_serving.answer import Answer, Headers, refusal
from muster_serving.errors import PredictionError
from muster_serving.events import TYPE, Outlet, send_events

_PIECE_BYTES = 64 << 10


async def relay(port: int, request: bytes, out: Outlet, *, keep: tuple[bytes, ...]) -> Answer:
    """Send a request, and pass its answer on as it comes; return it whole where it is no stream.

    The connection is one of its own: it ends where the client leaves, so that the other process sees it leave.

    :param keep: the headers that are passed on.
    :raises OSError: the other process does not answer.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        return await out.while_there(_pass_on(reader, out, keep))
    except PredictionError as error:
        raise ConnectionResetError(str(error)) from error  # nothing of it has been sent
    finally:
        writer.close()


async def _pass_on(reader: asyncio.StreamReader, out: Outlet, keep: tuple[bytes, ...]) -> Answer:
    answer = _Answer(keep)
    await answer.begin(reader)
    pieces = answer.pieces(reader)
    if dict(answer.headers).get(b"content-type", b"").startswith(TYPE):
        return await send_events(pieces, out, answer.headers, failed=_failed)
    async with aclosing(pieces):
        body = b"".join([piece async for piece in pieces])
    return Answer(answer.status, body, answer.headers)


def _failed(error: PredictionError) -> Answer:
    return refusal(str(error), 503)


class _Answer:
    """An answer that arrives: httptools calls the methods whose names begin with ``on``."""

    def __init__(self, keep: tuple[bytes, ...]) -> None:
        self.headers: Headers = ()
        self.status = 0
        self._keep = keep
        self._taken: list[bytes] = []
        self._begun = self._whole = False
        self._parser = httptools.HttpResponseParser(self)

    async def begin(self, reader: asyncio.StreamReader) -> None:
        """Read the headers. :raises PredictionError: the other process hung up."""
        while not self._begun:
            await self._read(reader)
        self.status = self._parser.get_status_code()

    async def pieces(self, reader: asyncio.StreamReader) -> AsyncGenerator[bytes, None]:
        """Yield the body as it comes. :raises PredictionError: it was cut off."""
        while True:
            taken, self._taken = self._taken, []
            if taken:
                yield b"".join(taken)
            elif self._whole:
                return
            else:
                await self._read(reader)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            data = await reader.read(_PIECE_BYTES)
            if not data:
                raise PredictionError("the process of this revision ended before its answer was whole")
            self._parser.feed_data(data)
        except OSError as error:
            raise PredictionError(f"the process of this revision is gone: {error}") from error
        except httptools.HttpParserError as error:
            raise PredictionError(f"the process of this revision answers no HTTP: {error}") from error

    def on_header(self, name: bytes, value: bytes) -> None:
        if (name := name.lower()) in self._keep:
            self.headers += ((name, value),)

    def on_headers_complete(self) -> None:
        self._begun = True

    def on_body(self, body: bytes) -> None:
        self._taken.append(body)

    def on_message_complete(self) -> None:
        self._whole = True
