"""Hostile and slow clients, as real sockets: what each is told, how much of it is read, who else is answered."""

from __future__ import annotations

import asyncio
import http.client
import json
import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import pytest
import uvicorn
from tests.waiting import GUARD_SECONDS, eventually, until
from uvicorn.server import ServerState

from muster_serving import connection as room
from muster_serving.body import BodyTurns, ByteBudget, ClientGone, read_body
from muster_serving.connection import WHOLE, LimitedConnection
from muster_serving.errors import RequestError

MIB = 1 << 20
GET = b"GET / HTTP/1.1\r\nHost: x\r\n"


class Served:
    """An application behind :class:`LimitedConnection`, on a loop of its own.

    :ivar begun: how many requests the application was asked.
    :ivar most: the most that were parsed and not answered at one time.
    """

    def __init__(self) -> None:
        self.begun = self.most = 0
        self.budget = ByteBudget(4 * MIB)
        self.state = ServerState()
        self._config = uvicorn.Config(
            self._app, interface="asgi3", log_config=None, ws="none", proxy_headers=False
        )
        self._config.load()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._open(), self._loop).result()
        self.port: int = self._server.sockets[0].getsockname()[1]

    async def _open(self) -> asyncio.Server:
        return await self._loop.create_server(
            lambda: LimitedConnection(config=self._config, server_state=self.state, app_state={}),
            "127.0.0.1",
            0,
        )

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        self.begun += 1
        self.most = max(self.most, *(len(one.pipeline) for one in self.state.connections), 0)
        try:
            status, payload = 200, b"%d" % len(await read_body(scope, receive, self.budget))
        except RequestError as error:
            status, payload = error.status, str(error).encode()
        except ClientGone:
            return
        payload += b" " * int(scope["query_string"] or 0)
        if scope["path"] == "/whole":
            with suppress(TimeoutError):
                async with self.budget.unread(len(payload)):
                    await send({"type": WHOLE, "status": 200, "headers": (), "body": payload, "close": False})
            return
        headers = [(b"content-length", b"%d" % len(payload))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": payload})

    def on_loop(self, what: Callable[[], Any]) -> Any:
        async def call() -> Any:
            return what()

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(GUARD_SECONDS)

    def look(self, *, after: float) -> None:
        """Look after the connections as if so many seconds had passed."""

        def look() -> None:
            for one in list(self.state.connections):
                one.look(self._loop.time() + after)

        self.on_loop(look)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=GUARD_SECONDS)

    def send(self, *pieces: bytes) -> bytes:
        """Send it all, whatever is answered meanwhile, and return what is."""
        with self.connect() as client:
            for piece in pieces:
                client.sendall(piece)
            return read(client)

    def close(self) -> None:
        async def close() -> None:
            self._server.close()
            for one in list(self.state.connections):
                one.transport.abort()
            while self.state.connections or self.state.tasks:
                await asyncio.sleep(0)
            self._loop.stop()

        asyncio.run_coroutine_threadsafe(close(), self._loop)
        self._thread.join()
        self._loop.close()


def read(client: socket.socket) -> bytes:
    """Return all that comes until the other end closes."""
    found = b""
    while piece := client.recv(1 << 16):
        found += piece
    return found


def ask(client: socket.socket) -> bytes:
    """Ask something, and return the whole answer."""
    client.sendall(GET + b"\r\n")
    found = b""
    while not found.endswith(b"\r\n\r\n0"):
        piece = client.recv(1 << 16)
        assert piece, found
        found += piece
    return found


@pytest.fixture
def served() -> Iterator[Served]:
    served = Served()
    yield served
    served.close()


def refusal(answer: bytes) -> tuple[int, str]:
    """The status and the error of a refused request."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"connection: close" in head
    return int(head.split()[1]), json.loads(body)["error"]


@pytest.mark.parametrize(
    ("pieces", "status", "error"),
    [
        ([b"GET /" + b"a" * (64 << 10), b" HTTP/1.1\r\n\r\n"], 414, "the URL has more than 16384 bytes"),
        ([GET + b"A: " + b"a" * (64 << 10), b"\r\n\r\n"], 431, "a header has more than 16384 bytes"),
        ([GET + b"a" * (64 << 10), b": 1\r\n\r\n"], 431, "a header has more than 16384 bytes"),
        ([GET, *[b"A: %s\r\n" % (b"a" * 9000)] * 9, b"\r\n"], 431, "the headers have more than 65536 bytes"),
        ([GET, b"A: 1\r\n" * 101, b"\r\n"], 431, "there are more than 100 headers"),
        ([b"nonsense\r\n\r\n"], 400, "this is not HTTP: Invalid method encountered"),
        (
            [b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n"],
            400,
            "this server is no proxy: CONNECT is not answered",
        ),
        ([b"GET / HTTP/1.1\r\n\r\n"], 400, "the request has 0 headers Host, expected one"),
        ([GET, b"hOST: y\r\n\r\n"], 400, "the request has 2 headers Host, expected one"),
    ],
)
def test_what_is_longer_than_any_request_is_refused(
    served: Served, pieces: list[bytes], status: int, error: str
) -> None:
    assert refusal(served.send(*pieces)) == (status, error)
    assert served.begun == 0


@pytest.mark.parametrize("start", [GET + b"A: ", b"GET /", GET])
def test_of_what_never_ends_little_is_parsed(served: Served, start: bytes) -> None:
    parsed = 0
    parse = LimitedConnection.parse

    def counting(connection: LimitedConnection, data: Any) -> None:
        nonlocal parsed
        parsed += len(data)
        parse(connection, data)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(LimitedConnection, "parse", counting)
        assert refusal(served.send(start, b"a" * 20 * MIB))[0] in (414, 431)
    assert parsed < 32 << 10


def test_headers_behind_a_body_are_limited_too(served: Served) -> None:
    head = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n"
    status, error = refusal(served.send(head, b"A: " + b"a" * MIB))
    assert (status, error) == (431, "a header has more than 16384 bytes")


def test_as_much_as_is_allowed_is_answered(served: Served) -> None:
    head = b"GET /" + b"a" * 16000 + b" HTTP/1.1\r\n" + b"A: %s\r\n" % (b"a" * 16000) * 4 + b"B: 1\r\n" * 94
    assert served.send(head + b"Host: x\r\nConnection: close\r\n\r\n").startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    ("sent", "seconds", "error"),
    [
        (GET, room.HEAD_SECONDS, "no whole header came in 10 seconds"),
        (
            b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n1",
            room.REQUEST_SECONDS,
            "no whole body came in 60 seconds",
        ),
    ],
)
def test_what_does_not_come_is_not_waited_for(
    served: Served, sent: bytes, seconds: float, error: str
) -> None:
    with served.connect() as client:
        client.sendall(sent)
        assert until(lambda: any(one.reading for one in served.state.connections))
        for drip in range(3):  # a little more of it changes nothing
            client.sendall(b"a" if b"POST" in sent else b"A: %d\r\n" % drip)
        served.look(after=seconds - 1)
        client.setblocking(False)
        with pytest.raises(BlockingIOError):
            client.recv(1)
        client.settimeout(GUARD_SECONDS)
        served.look(after=seconds + 1)
        assert refusal(read(client)) == (408, error)
    assert until(lambda: not served.state.connections)


def test_who_does_not_go_is_cut_off(served: Served) -> None:
    with served.connect() as client:
        client.sendall(b"nonsense\r\n\r\n")
        assert read(client).startswith(b"HTTP/1.1 400 ")
        served.look(after=room.LEAVE_SECONDS - 1)
        assert len(served.state.connections) == 1
        served.look(after=room.LEAVE_SECONDS + 1)
        assert until(lambda: not served.state.connections)


def test_a_connection_that_asks_nothing_is_closed_after_a_while(served: Served) -> None:
    with served.connect() as new, served.connect() as used:
        assert ask(used).startswith(b"HTTP/1.1 200 ")
        assert until(lambda: len(served.state.connections) == 2)
        served.look(after=room.IDLE_SECONDS - 1)
        assert len(served.state.connections) == 2
        served.look(after=room.IDLE_SECONDS + 1)
        assert (read(new), read(used)) == (b"", b"")


def test_requests_sent_ahead_are_answered_in_order(served: Served) -> None:
    with served.connect() as client:
        lengths = [n % 7000 for n in range(0, 70000, 501)]
        posts = (
            b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (n, b"a" * n) for n in lengths
        )
        client.sendall(b"".join(posts) + GET + b"Connection: close\r\n\r\n")
        answers = read(client).split(b"HTTP/1.1 200 OK")[1:]
    assert [int(answer.partition(b"\r\n\r\n")[2]) for answer in answers] == [*lengths, 0]


def test_of_requests_sent_ahead_few_are_parsed(served: Served) -> None:
    with served.connect() as client:
        client.setblocking(False)
        asked = (GET.replace(b"/", b"/?1000", 1) + b"\r\n") * 2000
        while sent := select.select([], [client], [], 0.2)[1]:  # until the server reads no more of it
            sent[0].send(asked)
        assert served.most < 200
        served.look(after=room.ANSWER_SECONDS - 1)
        assert len(served.state.connections) == 1

        def gone() -> bool:  # it may still be at the last answer that it has room for
            served.look(after=room.ANSWER_SECONDS + 1)
            return not served.state.connections

        assert until(gone)


@pytest.mark.parametrize("behind", [b"nonsense\r\n\r\n", GET + b"A: " + b"a" * (32 << 10)])
def test_what_was_asked_before_something_is_refused_is_answered(served: Served, behind: bytes) -> None:
    with served.connect() as client:
        client.sendall(GET + b"\r\n" + GET + b"\r\n" + behind)
        answers = read(client)
    assert answers.count(b"HTTP/1.1 200 ") == 2


@pytest.mark.parametrize("keep", ["keep-alive", "close"])
def test_who_sends_too_long_a_body_reads_why(served: Served, keep: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=GUARD_SECONDS)
    connection.request("POST", "/", b" " * 40 * MIB, {"Connection": keep})
    response = connection.getresponse()
    assert response.status == 413
    assert b"at most 16777216 are read" in response.read()
    connection.close()


def test_a_body_that_stalls_gives_way(served: Served) -> None:
    head = b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
    with ExitStack() as opened:
        withheld = [opened.enter_context(served.connect()) for _ in range(4)]
        for client in withheld:
            client.sendall(head % MIB + b"a" * (MIB - 1000))
        assert until(lambda: served.on_loop(lambda: served.budget.free_bytes) < MIB)

        def answered() -> bool:  # at first they could all still be coming
            return served.send(head % (MIB // 2) + b"a" * (MIB // 2)).startswith(b"HTTP/1.1 200 ")

        eventually(answered)
        withheld[0].sendall(b"a" * 1000)
        assert read(withheld[0]).startswith(b"HTTP/1.1 503 ")
        for client in withheld[1:]:
            client.sendall(b"a" * 1000)
            assert read(client).startswith(b"HTTP/1.1 200 ")
    assert served.on_loop(lambda: served.budget.free_bytes) == 4 * MIB


def test_bodies_are_worked_on_in_turns() -> None:
    async def main() -> None:
        turns, begun, ends = BodyTurns(10), list[str](), {name: threading.Event() for name in "abcd"}

        def work(name: str) -> str:
            begun.append(name)
            ends[name].wait(GUARD_SECONDS)
            return name

        async def begins(*names: str) -> None:
            while begun != list(names):
                await asyncio.sleep(0)

        lengths = {"a": 6, "b": 4, "c": 10, "d": 1}
        tasks = {
            name: asyncio.create_task(turns.in_thread(length, partial(work, name)))
            for name, length in lengths.items()
        }
        await begins("a", "b")
        for left in (
            tasks["c"],
            tasks["a"],
        ):  # one that waits holds no other up; the thread of the other still works
            left.cancel()
            with pytest.raises(asyncio.CancelledError):
                await left
        assert begun == ["a", "b"]
        ends["a"].set()
        await begins("a", "b", "d")
        for name in "bd":
            ends[name].set()
            assert await tasks[name] == name
        assert await turns.in_thread(11, lambda: "all of it is free again")

    asyncio.run(main())


def test_the_oldest_answer_that_nobody_reads_is_given_up() -> None:
    async def main() -> None:
        budget = ByteBudget(10)

        async def send(length: int) -> None:
            async with budget.unread(length):
                await asyncio.Event().wait()

        tasks = [asyncio.create_task(send(length)) for length in (3, 4, 6)]
        done, reading = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        assert done == {tasks[0]}
        assert isinstance(tasks[0].exception(), TimeoutError)
        assert budget.free_bytes == 0
        for each in reading:
            each.cancel()
        await asyncio.wait(reading)
        assert budget.free_bytes == 10

    asyncio.run(main())


def test_a_client_that_does_not_read_loses_its_connection_to_others(served: Served) -> None:
    length = 8 * MIB  # more than both ends' buffers of a socket take
    with ExitStack() as opened:
        slow, quick = (opened.enter_context(served.connect()) for _ in range(2))
        slow.sendall(b"GET /whole?%d HTTP/1.1\r\nHost: x\r\n\r\n" % length)
        eventually(lambda: served.on_loop(lambda: served.budget.free_bytes) < 0)
        quick.sendall(b"GET /whole?%d HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % length)
        assert len(read(quick)) > length
        with suppress(ConnectionResetError):
            assert len(read(slow)) < length
    eventually(lambda: served.on_loop(lambda: served.budget.free_bytes) == 4 * MIB)


def test_one_connection_too_many_costs_the_slowest_its_own(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "CONNECTIONS", 3)
    with ExitStack() as opened:
        kept, slow, other = (opened.enter_context(served.connect()) for _ in range(3))
        assert ask(kept).startswith(b"HTTP/1.1 200 ")
        slow.sendall(GET)
        assert until(lambda: any(one.reading for one in served.state.connections))
        newest = opened.enter_context(served.connect())
        for client in (newest, kept, other):
            assert ask(client).startswith(b"HTTP/1.1 200 ")
        assert until(lambda: len(served.state.connections) == 3)
        with suppress(ConnectionResetError):
            assert slow.recv(1) == b""
