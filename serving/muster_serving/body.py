"""Reading a request's body over ASGI, with a limit for each body and a budget for all clients' bodies and answers together.

When the budget is used up, the body that has waited longest for its client is dropped, and so is the oldest long answer
that its client has not read. So a client that only holds memory cannot block other clients for long.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

from muster_serving.errors import RequestError, ServingError

MAX_BODY_BYTES = 16 << 20
MAX_HELD_BYTES = 128 << 20  # with what is made of them, some 2.5 times as much is in memory
_ADVANCE_BYTES = 64 << 10
STALLED_SECONDS = 0.25  # a body that gets no more for this long may be dropped

_FULL = "other requests' bodies and answers fill this server's memory for them: try again"

T = TypeVar("T")
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class ClientGone(ServingError):
    """The client hung up before it had sent its request."""


class ByteBudget:
    """The limit for the bytes of all bodies that arrive in pieces, and of answers that their clients have not read yet.

    A body of one piece is not counted.
    """

    def __init__(self, limit_bytes: int = MAX_HELD_BYTES) -> None:
        self.free_bytes = limit_bytes
        self._unread: dict[asyncio.Timeout, int] = {}  # oldest first
        self._arriving: OrderedDict[Arriving, None] = (
            OrderedDict()
        )  # in the order of their last progress, oldest first

    @contextmanager
    def holding(self) -> Iterator[Callable[[int], None]]:
        """Yield a function that reserves bytes; all are released at the end.

        :raises RequestError: 503 from that function, where there are no more.
        """
        held = 0

        def take(length: int) -> None:
            nonlocal held
            self.take(length)
            held += length

        try:
            yield take
        finally:
            self.free_bytes += held

    def take(self, length: int) -> None:
        """Reserve bytes, dropping stalled bodies if needed.

        :raises RequestError: 503, the budget is used up.
        """
        while length > self.free_bytes and self._arriving and (first := next(iter(self._arriving))).stalled:
            first.give_way()
        if length > self.free_bytes:
            raise RequestError(_FULL, status=503)
        self.free_bytes -= length

    def give_back(self, length: int) -> None:
        """Release bytes."""
        self.free_bytes += length

    @asynccontextmanager
    async def unread(self, length: int) -> AsyncIterator[None]:
        """Count an answer while the block sends it. Beyond the limit the oldest answers are given up.

        :raises TimeoutError: this answer was given up.
        """
        async with asyncio.timeout(None) as patience:
            self._unread[patience] = length
            self.free_bytes -= length
            while self.free_bytes < 0 and len(self._unread) > 1:
                oldest = next(iter(self._unread))
                self._read(oldest)
                oldest.reschedule(0)
            try:
                yield
            finally:
                self._read(patience)

    def _read(self, answer: asyncio.Timeout) -> None:
        self.free_bytes += self._unread.pop(answer, 0)

    def advanced(self, body: Arriving) -> None:
        """Note that an arriving body advanced."""
        self._arriving[body] = None
        self._arriving.move_to_end(body)

    def ended(self, body: Arriving) -> None:
        """Forget a body: it has arrived, or never will."""
        self._arriving.pop(body, None)


class BodyTurns:
    """The limit for the bytes of the bodies that threads work on at once: each takes several times its length meanwhile.

    The others wait, in the order in which they came.
    """

    def __init__(self, most: int = MAX_BODY_BYTES) -> None:
        self._most = self._free_bytes = most
        self._next = asyncio.Lock()
        self._freed = asyncio.Event()

    async def in_thread(self, length: int, work: Callable[[], T]) -> T:
        """Have a thread work on a body of that many bytes, one that is longer than all of them together alone.

        Its turn lasts as long as its thread, also when its client has left meanwhile.
        """
        length = min(length, self._most)
        async with self._next:
            while length > self._free_bytes:
                self._freed.clear()
                await self._freed.wait()
            self._free_bytes -= length
        working = asyncio.ensure_future(asyncio.to_thread(work))

        def done(working: asyncio.Future[T]) -> None:
            self._free_bytes += length
            self._freed.set()
            working.exception()  # its caller may be gone

        working.add_done_callback(done)
        return await asyncio.shield(working)


class Arriving:
    """One body that comes in pieces.

    :param patience: the timeout of the task that reads it; it expires when the body is dropped.
    :param most: how many bytes it may have.
    """

    def __init__(self, budget: ByteBudget, patience: asyncio.Timeout, *, most: int = MAX_BODY_BYTES) -> None:
        self._budget = budget
        self._most = most
        self._patience = patience
        self._pieces: list[bytes] = []
        self._length = self._advanced_to = 0
        self._gave_way = False
        self._advanced_at = asyncio.get_running_loop().time()
        budget.advanced(self)

    @property
    def stalled(self) -> bool:
        """Whether it has made no progress for so long that it may be dropped."""
        return asyncio.get_running_loop().time() > self._advanced_at + STALLED_SECONDS

    def add(self, piece: bytes) -> None:
        """Add a piece. :raises RequestError: it is too long, or the budget is used up."""
        check_length(self._length + len(piece), self._most)
        if self._gave_way:
            raise RequestError(_FULL, status=503)
        self._budget.take(len(piece))
        if self._gave_way:  # it had stalled, and `take` dropped it just now
            self._budget.give_back(len(piece))
            raise RequestError(_FULL, status=503)
        self._pieces.append(piece)
        self._length += len(piece)
        if self._length >= self._advanced_to + _ADVANCE_BYTES:
            self._advanced_to, self._advanced_at = self._length, asyncio.get_running_loop().time()
            self._budget.advanced(self)

    def whole(self) -> bytes:
        """Return the body."""
        return b"".join(self._pieces)

    def give_way(self) -> None:
        """Release everything and wake its reader."""
        self._gave_way = True
        self.end()
        self._patience.reschedule(0)

    def end(self) -> None:
        """Release its bytes. Idempotent."""
        self._budget.ended(self)
        self._budget.give_back(self._length)
        self._pieces, self._length = [], 0


async def read_body(scope: Any, receive: Receive, budget: ByteBudget, *, most: int = MAX_BODY_BYTES) -> bytes:
    """Return a request's whole body.

    :param most: how many bytes it may have.
    :raises RequestError: 413, the body is too long (by its Content-Length, where there is one, before it is read);
        503, the budget is used up.
    :raises ClientGone: its client is gone.
    """
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body", False):
        body: bytes = message["body"]
        check_length(len(body), most)
        return body
    told = next((int(value) for name, value in scope["headers"] if name == b"content-length"), 0)
    check_length(told, most)
    try:
        async with asyncio.timeout(None) as patience:
            body = Arriving(budget, patience, most=most)
            try:
                while message["type"] == "http.request":
                    body.add(message["body"])
                    if not message.get("more_body", False):
                        return body.whole()
                    message = await receive()
            finally:
                body.end()
    except TimeoutError:
        raise RequestError(_FULL, status=503) from None
    raise ClientGone


def check_length(length: int, most: int) -> None:
    """Refuse a body that is too long. :raises RequestError: 413."""
    if length > most:
        raise RequestError(
            f"the body has {length} bytes or more, at most {most} are read: send fewer rows a request",
            status=413,
        )
