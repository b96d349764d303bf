"""Reading a request's body over ASGI: none too long, and all clients' together within a budget."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

from muster_serving.errors import RequestError

MAX_BODY_BYTES = 16 << 20
MAX_HELD_BYTES = 256 << 20

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class ClientGone(Exception):
    """The client hung up before it had sent its request."""


class Budget:
    """How many bytes of bodies that came in pieces are held at once; a body of one piece is not counted."""

    def __init__(self, limit_bytes: int = MAX_HELD_BYTES) -> None:
        self._free = limit_bytes

    @contextmanager
    def holding(self) -> Iterator[Callable[[int], None]]:
        """Give a function that takes more bytes; all are given back at the end.

        :raises RequestError: 503 from that function, where there are no more.
        """
        held = 0

        def take(length: int) -> None:
            nonlocal held
            if length > self._free:
                raise RequestError(
                    "the bodies of other requests fill what this server holds at once: try again", status=503
                )
            held += length
            self._free -= length

        try:
            yield take
        finally:
            self._free += held


async def read_body(scope: Any, receive: Receive, budget: Budget) -> bytes:
    """Return a request's whole body.

    :raises RequestError: 413, from the announced length before the body is read where there is one;
        503 where the budget is used up.
    :raises ClientGone: nobody waits for an answer any more.
    """
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body", False):
        body: bytes = message["body"]
        return body
    _check_length(next((int(value) for name, value in scope["headers"] if name == b"content-length"), 0))
    chunks: list[bytes] = []
    length = 0
    with budget.holding() as take:
        while message["type"] == "http.request":
            length += len(message["body"])
            _check_length(length)
            take(len(message["body"]))
            chunks.append(message["body"])
            if not message.get("more_body", False):
                return b"".join(chunks)
            message = await receive()
    raise ClientGone


def _check_length(length: int) -> None:
    if length > MAX_BODY_BYTES:
        raise RequestError(
            f"the body has {length} bytes or more, at most {MAX_BODY_BYTES} are read: send fewer rows a request",
            status=413,
        )
