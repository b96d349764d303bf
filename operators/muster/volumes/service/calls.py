"""One request as a handler sees it: its token, its parameters, and its body, read as it arrives.

Handlers are plain functions that run in threads, since all they do is read and write files.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import anyio
import anyio.from_thread
import anyio.to_thread
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from muster.core import wire
from muster.core.errors import MusterError, SpecError
from muster.core.room import CLAIM, Room, is_full
from muster.volumes.durability import translated
from muster.volumes.service.archives import CHUNK_BYTES
from muster.volumes.service.bells import Bell
from muster.volumes.service.refusals import document, status_of
from muster.volumes.service.served import Served
from muster.volumes.service.table import number
from muster.volumes.service.tokens import Token, TokenKind, TokenRefused, verify

MIB = 1 << 20
LIMIT_JSON_BYTES = 16 * MIB
LIMIT_LINES_BYTES = 4 * MIB
LIMIT_WORKER_BYTES = 16 * MIB
WORKER = "worker.pyz"

SILENCE_SECONDS = 30.0  # a client that sends no more may be on a lost node
MESSAGE_SECONDS = 60.0  # for a whole body that is kept in memory

T = TypeVar("T")


class Body(io.RawIOBase):
    """A request's body as a file, for a thread; at most one chunk of it is in memory.

    :param seconds: how long the whole body may take; besides, no pause may exceed `SILENCE_SECONDS`.
    :param what: its name in errors.
    """

    def __init__(
        self,
        request: Request,
        *,
        limit_bytes: int | None,
        seconds: float | None = None,
        what: str = "the request's body",
    ) -> None:
        self._chunks, self._what = request.stream(), what
        self._until = None if seconds is None else time.monotonic() + seconds
        self._limit, self._taken, self._rest = limit_bytes, 0, b""

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Read into `buffer`.

        :raises SpecError: the body is longer than its limit.
        :raises ClientDisconnect: the client sends no more, or too slowly.
        """
        while not self._rest:
            chunk = anyio.from_thread.run(self._next)
            if not chunk:
                return 0
            self._taken += len(chunk)
            if self._limit is not None and self._taken > self._limit:
                raise SpecError(f"{self._what} is longer than the {self._limit} bytes that are taken here")
            self._rest = chunk
        count = min(len(buffer), len(self._rest))
        buffer[:count], self._rest = self._rest[:count], self._rest[count:]
        return count

    async def _next(self) -> bytes | None:
        left = SILENCE_SECONDS
        if self._until is not None:
            left = min(left, self._until - time.monotonic())
        try:
            with anyio.fail_after(left):
                return await anext(self._chunks, None)
        except TimeoutError as error:
            raise ClientDisconnect from error


@dataclass
class Call:
    """One request to the store service."""

    served: Served
    request: Request
    token: Token = field(default_factory=lambda: Token(kind=TokenKind.JOB, expires=0))
    asked: float = field(default_factory=time.monotonic)

    def part(self, name: str) -> str:
        """Return a part of the path. Code that makes a file name of it must check it."""
        return str(self.request.path_params[name])

    def number(self, name: str) -> int:
        """Return a part of the path that is a number."""
        return number(name, self.part(name))

    def query(self, name: str, default: str | None = None) -> str:
        """Return a parameter of the query. :raises SpecError: it is missing and has no default."""
        value = self.request.query_params.get(name, default)
        if value is None:
            raise SpecError(f"the request lacks its parameter {name!r}")
        return value

    def query_number(self, name: str, default: int | None = None) -> int:
        """Return a parameter of the query that is a number, 0 or more."""
        return number(name, self.query(name, None if default is None else str(default)))

    def body(self, *, limit_bytes: int | None) -> io.BufferedReader:
        """Return the body, to be read once."""
        return io.BufferedReader(Body(self.request, limit_bytes=limit_bytes), CHUNK_BYTES)

    def text(self, *, limit_bytes: int, what: str = "the request's body") -> bytes:
        """Return the whole body. :raises SpecError: it is longer than `limit_bytes`."""
        body = Body(self.request, limit_bytes=limit_bytes, seconds=MESSAGE_SECONDS, what=what)
        return io.BufferedReader(body, CHUNK_BYTES).read()

    def message(self, kind: type[T]) -> T:
        """Return the body as a dataclass. :raises SpecError: it is of another kind, or too long."""
        return wire.loads(kind, self.text(limit_bytes=LIMIT_JSON_BYTES))


@dataclass(frozen=True, kw_only=True)
class Later:
    """Returned by a handler that has no answer yet: it is called again at the job's next news, or after some seconds."""

    seconds: float


@dataclass(frozen=True, kw_only=True)
class Count:
    """How many bytes of a stream the service has."""

    count: int


Handler = Callable[[Call], object]


def route(
    method: str,
    path: str,
    handler: Handler,
    *,
    served: Served,
    job: bool = False,
    threads: anyio.CapacityLimiter | None = None,
    waits: bool = False,
) -> Route:
    """Bind a handler to a path, for operators, and with `job` for that job's own pods too.

    A dataclass that a handler returns is sent as a message, None as 204, a response unchanged. An error that
    it raises is sent as that error.

    :param threads: those of :class:`Served` for calls that may take minutes, or come from pods.
    :param waits: the handler may return :class:`Later`; no thread is held until it is called again.
    """

    async def answer(request: Request) -> Response:
        call = Call(served, request)

        def work() -> Response | Later:
            with translated(f"{method} {request.url.path}"):
                call.token = _allowed(call, job=job)
                made = handler(call)
                return made if isinstance(made, Later) else _response(made)

        async def work_until_done() -> Response:
            while True:
                with hung(served, call) as bell:  # before the handler looks: no news is missed
                    made = await anyio.to_thread.run_sync(work, limiter=threads)
                    if isinstance(made, Response):
                        return made
                    await bell.heard(seconds=made.seconds)

        try:
            if waits:
                return await work_until_done()
            answered = await anyio.to_thread.run_sync(work, limiter=threads)
            assert isinstance(answered, Response)
            return answered
        except MusterError as error:
            return refusal(_with_room(error, served))
        except ClientDisconnect:  # if the client gets the answer it may send all of it again
            return Response(status_code=408, headers={"connection": "close"})

    return Route(path, answer, methods=[method])


@contextmanager
def hung(served: Served, call: Call) -> Iterator[Bell]:
    """Hang a bell for the job that a call names."""
    bells, job_id = served.regrouping.bells, call.part("job_id")
    bell = bells.hang(job_id)
    try:
        yield bell
    finally:
        bells.take_down(job_id, bell)


def refusal(error: MusterError) -> Response:
    """Return the response for an error."""
    return JSONResponse(document(error), status_code=status_of(error))


def _with_room(error: MusterError, served: Served) -> MusterError:
    """Add to a full disk's error which disk it is, and its free space: the client cannot see it."""
    if not is_full(error):
        return error
    told = type(error)(f"{error}; {Room.of(served.store.layout.root, disk=CLAIM)}")
    told.__cause__ = error.__cause__
    return told


def _allowed(call: Call, *, job: bool) -> Token:
    scheme, _, text = call.request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        raise TokenRefused("the request carries no token: send it as `Authorization: Bearer TOKEN`")
    token = verify(call.served.keys, text.strip())
    if token.kind is TokenKind.OPERATOR:
        return token
    if not job or token.job_id != call.part("job_id"):
        whose = f"job {token.job_id}'s" if job else "a job's"
        raise TokenRefused(f"the token is {whose}: it does not count for {call.request.url.path!r:.120}")
    return token


def _response(made: object) -> Response:
    if made is None:
        return Response(status_code=204)
    if isinstance(made, Response):
        return made
    return Response(wire.dumps(made), media_type="application/json")
