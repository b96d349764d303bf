"""One request as a handler sees it: its token, its parameters, and its body, read as it arrives; and the state that all requests share.

Handlers are plain functions that run in threads, since all they do is read and write files.
"""

from __future__ import annotations

import io
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar
from weakref import WeakValueDictionary

import anyio
import anyio.from_thread
import anyio.to_thread
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from muster.core import wire
from muster.core.errors import MusterError, NotFound, SpecError
from muster.core.room import CLAIM, Room, is_full
from muster.core.status import JobStatus
from muster.volumes.durability import translated
from muster.volumes.folder import FolderStore
from muster.volumes.service.archives import CHUNK_BYTES, Chunks
from muster.volumes.service.committer import Committer
from muster.volumes.service.hearing import Hearing
from muster.volumes.service.journal import Journals
from muster.volumes.service.persons import PersonTokens, Reach
from muster.volumes.service.refusals import document, status_of
from muster.volumes.service.regrouping import Regrouping
from muster.volumes.service.starts import GangStarts
from muster.volumes.service.table import number
from muster.volumes.service.tokens import Token, TokenKind, TokenRefused, verify

MIB = 1 << 20
LIMIT_JSON_BYTES = 16 * MIB
LIMIT_LINES_BYTES = 4 * MIB
LIMIT_WORKER_BYTES = 16 * MIB
WORKER = "worker.pyz"

SILENCE_SECONDS = 30.0  # a client that sends no more may be on a lost node
_MESSAGE_SECONDS = 60.0  # for a whole body that is kept in memory
FIRST_SECONDS, LEAST_BYTES_A_SECOND = 10.0, 16 << 10
SMALL_BYTES = 64 << 10  # as much of a body is read before its turn: uvicorn has it in memory anyway

T = TypeVar("T")


class Turns:
    """A limit of requests at a time, each with one of `threads`; the pods of one job, or one person's token, have at most a quarter."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._all, self.threads = anyio.Semaphore(most), anyio.CapacityLimiter(most)
        self._jobs = WeakValueDictionary[str, anyio.Semaphore]()

    @asynccontextmanager
    async def turn(self, job_id: str) -> AsyncIterator[None]:
        """Wait for a turn, and have it while the block runs. :param job_id: the id of a job or of a person's token; empty for an operator's request."""
        if not job_id:
            async with self._all:
                yield
            return
        own = self._jobs.setdefault(job_id, anyio.Semaphore(self._most // 4))
        async with own, self._all:
            yield


@dataclass(frozen=True, kw_only=True)
class Served:
    """One store that is served.

    :param working: for commits, uploads and other work of minutes; `starting`: for new attempts, where the pods of a gang
        wait until the first of them is done; `lines` and `seals`: for requests of pods. So quick requests never wait behind
        any of these, and no job's pods keep those of another waiting.
    :param keeps_requests: whether something commits the requests that model servers keep, so that they may.
    :param reading_seal: held while a seal is parsed, which takes many times its length of memory.
    """

    store: FolderStore
    keys: Sequence[bytes]
    journals: Journals
    hearing: Hearing
    committer: Committer
    starts: GangStarts
    regrouping: Regrouping
    persons: PersonTokens
    keeps_requests: bool = False
    quick: Turns = field(default_factory=lambda: Turns(40))
    working: Turns = field(default_factory=lambda: Turns(16))
    starting: Turns = field(default_factory=lambda: Turns(64))
    lines: Turns = field(default_factory=lambda: Turns(16))
    seals: Turns = field(default_factory=lambda: Turns(4))
    reading_seal: threading.Lock = field(default_factory=threading.Lock)

    def with_news(self, status: JobStatus) -> JobStatus:
        """Return a status, with the newest progress and links if its job has not ended."""
        return status if status.state.ended else self.hearing.with_news(status)


class Stream:
    """A request's body as it arrives. :param limit_bytes: of all of it. :param what: its name in errors."""

    def __init__(
        self, request: Request, *, limit_bytes: int | None, what: str = "the request's body"
    ) -> None:
        self._chunks, self._limit, self._what = request.stream(), limit_bytes, what
        self._began, self.taken = time.monotonic(), 0

    async def read(self, *, first_seconds: float, most_seconds: float = float("inf")) -> bytes:
        """Return the next bytes, none at the end.

        :param first_seconds: for the first bytes; beyond, the body must come at `LEAST_BYTES_A_SECOND`, within `most_seconds`.
        :raises SpecError: the body is longer than its limit. :raises ClientDisconnect: it comes too slowly, or not at all.
        """
        allowed = min(first_seconds + self.taken / LEAST_BYTES_A_SECOND, most_seconds)
        left = self._began + allowed - time.monotonic()
        try:
            with anyio.fail_after(min(left, SILENCE_SECONDS)):
                chunk = await anext(self._chunks, b"")
        except TimeoutError as error:
            raise ClientDisconnect from error
        self.taken += len(chunk)
        if self._limit is not None and self.taken > self._limit:
            raise SpecError(f"{self._what} is longer than the {self._limit} bytes that are taken here")
        return chunk


@dataclass
class Call:
    """One request to the store service. :param reach: what the token of a person reaches; None of other tokens."""

    served: Served
    request: Request
    reach: Reach | None = None
    token: Token = field(default_factory=lambda: Token(kind=TokenKind.JOB, expires=0))
    text: bytes = b""
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
        """Return the body, to be read once, of a route that has not read it."""
        read = partial(Stream(self.request, limit_bytes=limit_bytes).read, first_seconds=SILENCE_SECONDS)
        return io.BufferedReader(Chunks(lambda: anyio.from_thread.run(read)), CHUNK_BYTES)

    def message(self, kind: type[T]) -> T:
        """Return the body as a dataclass. :raises SpecError: it is of another kind."""
        return wire.loads(kind, self.text)


@dataclass(frozen=True, kw_only=True)
class Later:
    """Returned by a handler that has no answer yet: it is called again at the job's next news, or after some seconds."""

    seconds: float


@dataclass(frozen=True, kw_only=True)
class Count:
    """How many bytes of a stream the service has."""

    count: int


_RIGHTS = {
    TokenKind.READER: ("reads",),
    TokenKind.SWEEPER: ("reads", "sweeps"),
    TokenKind.PAGE: ("reads", "clicks", "persons"),
}

Handler = Callable[[Call], object]
Bind = Callable[[Served], Route]
"""Makes the route of one service."""


def route(
    method: str,
    path: str,
    handler: Handler,
    *,
    job: bool = False,
    turns: str = "quick",
    text: int | None = None,
    what: str = "the request's body",
    waits: bool = False,
    right: str = "",
    person: str = "",
) -> Bind:
    """Bind a handler to a path, for operators, and with `job` for that job's own pods too.

    The token is looked at first, then the body is read, and only then the handler has a thread. A dataclass that it
    returns is sent as a message, None as 204, a response unchanged. An error that it raises is sent as that error.

    :param turns: those of :class:`Served`; others than `quick` are for calls that may take minutes, or come from pods.
    :param text: the most bytes of the body, which the handler finds as :attr:`Call.text`; without it the handler
        reads the body itself. :param what: the body's name in errors.
    :param waits: the handler may return :class:`Later`; it has no turn until it is called again.
    :param right: `reads`, `sweeps`, `clicks` or `persons` for calls that other tokens than an operator's allow; a GET that is no pod's reads.
    :param person: `reads` or `changes` for calls that a person's token allows, where it reaches every volume and job that path, query
        and arguments name: see :meth:`muster.volumes.service.persons.Reach.admit`.
    """

    async def once(call: Call) -> Response | Later:
        theirs: Turns = getattr(call.served, turns)
        async with AsyncExitStack() as stack:
            turn = theirs.turn(call.token.job_id or call.token.token_id)
            if text is not None:
                stream = Stream(call.request, limit_bytes=text, what=what)
                call.text = await _text(stream, lambda: stack.enter_async_context(turn))
            if len(call.text) <= SMALL_BYTES:
                await stack.enter_async_context(turn)
            return await anyio.to_thread.run_sync(
                partial(_worked, handler, call, person), limiter=theirs.threads
            )

    async def answer(request: Request, served: Served) -> Response:
        call, bells = Call(served, request), served.regrouping.bells
        try:
            call.token = _allowed(
                call,
                job=job,
                right=right or ("reads" if method == "GET" and not job else "operates"),
                person=bool(person),
            )
            while True:
                with (
                    bells.hung(call.part("job_id")) if waits else nullcontext() as bell
                ):  # first: no news is missed
                    made = await once(call)
                    if isinstance(made, Response):
                        return made
                    assert bell is not None
                    await bell.heard(seconds=made.seconds)
        except MusterError as error:
            return refusal(_with_room(error, served))
        except ClientDisconnect:  # if the client gets the answer it may send all of it again
            return Response(status_code=408, headers={"connection": "close"})

    return lambda served: Route(path, partial(answer, served=served), methods=[method])


def _worked(handler: Handler, call: Call, person: str) -> Response | Later:
    with translated(f"{call.request.method} {call.request.url.path}"):
        try:
            if call.token.kind is TokenKind.PERSON:
                call.reach = call.served.persons.reach(call.token)
                call.reach.admit({**call.request.query_params, **call.request.path_params}, right=person)
            made = handler(call)
            return made if isinstance(made, Later) else _response(made)
        except NotFound as error:
            if call.reach is None:
                raise
            raise NotFound(
                str(error).partition("; there ")[0]
            ) from error  # what there is may be another team's
        except (RecursionError, OverflowError) as error:
            raise SpecError(
                f"the request is nested too deeply, or a number in it is too large: {error}"
            ) from error


async def _text(stream: Stream, turn: Callable[[], Awaitable[None]]) -> bytes:
    """Return a whole body; more than `SMALL_BYTES` of it are in memory only once it is its turn."""
    found = bytearray()
    while chunk := await stream.read(first_seconds=FIRST_SECONDS, most_seconds=_MESSAGE_SECONDS):
        if stream.taken > SMALL_BYTES >= len(found):
            await turn()
        found += chunk
    return bytes(found)


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


def _allowed(call: Call, *, job: bool, right: str, person: bool) -> Token:
    scheme, _, text = call.request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        raise TokenRefused("the request carries no token: send it as `Authorization: Bearer TOKEN`")
    token = verify(call.served.keys, text.strip())
    if token.kind is TokenKind.OPERATOR or right in _RIGHTS.get(token.kind, ()):
        return token
    if person and token.kind is TokenKind.PERSON:
        return token  # what it reaches is looked at in a thread
    if token.kind in (*_RIGHTS, TokenKind.PERSON):
        raise TokenRefused(
            f"the token is a {token.kind.value}'s: it does not count for {call.request.url.path!r:.120}"
        )
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
