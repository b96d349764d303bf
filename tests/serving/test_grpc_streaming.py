"""ModelStreamInfer, asked by Triton's own client: what it is told of parts, of errors, and of servers that go."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.packages import installed
from tests.serving import onnx_graph, test_clients
from tests.serving.streaming_model import PREDICT, write_words
from tests.serving.test_clients import BANK, NOWHERE, SHOP, limits, token
from tests.serving.test_grpc import Answering, bound, load, start  # noqa: F401 - a fixture among them
from tests.serving.test_streaming import resident_mib
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.data]

HERE = Path(__file__).parent
TRITON = HERE / "triton" / "requirements.txt"
SECONDS, BRIEF_SECONDS = 60.0, 2.0
LATE = "the answer was not taken within 2 s (request_timeout): read it faster"
LEFT = "this model server ends: ask on a new stream what has no answer"


class Streaming:
    """A process with Triton's client, which asks on one stream."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def do(self, what: str, **more: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": what, **more}) + "\n")
        self.process.stdin.flush()

    def ask(self, count: int, act: str = "", **more: Any) -> None:
        self.do("ask", inputs=inputs(count, act), **more)

    def hear(self) -> dict[str, Any]:
        """Return what the client is told next."""
        assert self.process.stdout is not None
        told: dict[str, Any] = json.loads(self.process.stdout.readline())
        return told

    def ask_one(self) -> dict[str, Any]:
        """Ask for one part, and return it once the server has counted its request."""
        self.ask(1, enable_empty_final_response=True)
        part = self.hear()
        assert self.hear()["told"] == {"triton_final_response": True}
        return part

    def words(self, count: int) -> list[str]:
        """Return the words of the next parts."""
        return [self.hear()["outputs"]["word"][0] for _ in range(count)]


def inputs(count: int, act: str = "") -> list[dict[str, Any]]:
    return [
        {"name": "count", "datatype": "INT64", "data": [count]},
        {"name": "act", "datatype": "BYTES", "data": [act]},
    ]


def x(*values: float) -> list[dict[str, Any]]:
    return [{"name": "x", "datatype": "FP32", "data": values}]


@contextmanager
def streaming(port: int, *, host: str = "", **headers: str) -> Iterator[Streaming]:
    """Give a client with an open stream. :param host: the host that it asks for at that port; empty: the address."""
    words = [sys.executable, str(HERE / "triton_stream.py"), f"{port}@{host}" if host else str(port)]
    with subprocess.Popen(
        words,
        env={**os.environ, "PYTHONPATH": str(installed(TRITON))},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            client = Streaming(process)
            client.do("start", headers=headers)
            yield client
        finally:
            process.kill()


@pytest.fixture(scope="module")
def setup(python: Callable[[str], Path]) -> dict[str, Any]:
    return {
        "python": str(python("serve")),
        "memory_gib": 1.0,
        "stream": True,
        "request_seconds": SECONDS,
    }


@pytest.fixture(scope="module")
def running(start: Any, setup: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Answering]:  # noqa: F811
    folder = tmp_path_factory.mktemp("models")
    with bound() as sockets, start(*sockets) as server:
        words = write_words(folder / "words")
        load(server, "words", words, setup=setup)
        load(server, "brief", words, setup={**setup, "request_seconds": BRIEF_SECONDS})
        yield server
        assert "never retrieved" not in log_of(server)  # asyncio, of an error that no code took


@pytest.fixture
def server(running: Answering) -> Answering:
    """A server that answers in parts, in one worker."""
    assert running.do("admit", needed=False) == {"id": 1}
    assert running.share(words=100) == {"id": 1}
    assert running.do("open") == {"id": 1}
    return running


@pytest.fixture
def client(server: Answering) -> Iterator[Streaming]:
    with streaming(server.grpc_port) as client:
        yield client


@contextmanager
def counted(server: Answering, revision: str = "words", **expected: int) -> Iterator[None]:
    """Expect `expected` more requests in a revision's counts, once the block has ended."""
    before = server.counted(revision)
    after = {
        key: before.get(key, 0) + expected.get(key, 0)
        for key in {*before, *expected}
        if before.get(key, 0) + expected.get(key, 0)
    }
    yield
    eventually(lambda: server.counted(revision) == after)


def log_of(server: Answering) -> str:
    return server.private.log.read_text()


def test_each_part_comes_before_the_next_is_computed_and_requests_are_answered_in_turn(
    server: Answering, client: Streaming, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    with counted(server, answered=2):
        client.ask(3, str(go), request_id="7")
        client.ask(2, request_id="8", enable_empty_final_response=True)
        first = client.hear()
        pid = first["outputs"]["pid"][0]
        which = {"muster-revision": "words", "muster-model": "volume://line/words@1"}
        assert first == {
            "id": "7",
            "version": "words",
            "outputs": {"word": ["w0"], "pid": [pid]},
            "told": {**which, "triton_final_response": False},
        }
        go.touch()
        assert client.words(2) == ["w1", "w2"]
        rest = [client.hear() for _ in range(2)]
        assert [one.get("id") for one in rest] == ["8", "8"], rest
        final = {"id": "8", "version": "words", "outputs": {}, "told": {"triton_final_response": True}}
        assert client.hear() == final
    with counted(server):  # a request that names a revision is not counted
        client.ask(1, model_version="words")
        client.do("stop")
        assert client.words(1) == ["w0"]
        assert client.hear() == {"stopped": "stop"}


def test_typed_values_are_answered_typed(server: Answering, client: Streaming) -> None:
    with counted(server, answered=1):
        client.do("typed", inputs=inputs(2))
        answers = client.hear()["answers"]
    assert [outputs[0]["contents"] for outputs in answers] == [
        {"bytesContents": ["dzA="]},
        {"bytesContents": ["dzE="]},
    ]


@pytest.mark.parametrize(
    ("act", "said"),
    [
        ("raise", "the model failed: ValueError: unlucky (predict.py:21)"),
        ("die", "the model's process was ended by SIGABRT"),
        ("hang", "the model's process gave no answer within 2 s (request_timeout), and was ended"),
        ("rows", "output 'pid': the model answered shape [1], expected [2]"),
    ],
)
def test_what_goes_wrong_after_some_parts_ends_its_request_alone(
    server: Answering, client: Streaming, act: str, said: str
) -> None:
    server.share(brief=100)
    with counted(server, "brief", failed=1):
        client.ask(5, act, enable_empty_final_response=True)
        assert client.words(3) == ["w0", "w1", "w2"]
        assert client.hear() == {"error": said, "status": None}
    eventually(lambda: server.public.ask("POST", "/v2/models/line/infer", http(1))[0] == 200)
    assert client.ask_one()["outputs"]["word"] == ["w0"]


def http(count: int) -> dict[str, Any]:
    return {"inputs": [{**one, "shape": [1]} for one in inputs(count)]}


def test_what_goes_wrong_before_the_first_part_is_said_in_http_s_words(
    server: Answering, client: Streaming
) -> None:
    with counted(server, failed=2, refused=2):
        client.ask(1, "at once")
        client.ask(0)
        client.do("ask", inputs=inputs(1)[:1])
        client.do("ask", inputs=x(1))
        said = [client.hear()["error"] for _ in range(4)]
    assert said == [
        "the model failed: ValueError: unlucky (predict.py:16)",
        "the model yielded no part, expected one or more",
        "input 'act' is missing; this model takes count, act",
        "input 'x' is unknown; this model takes count, act",
    ]
    client.ask(1, model="other")
    assert client.hear()["error"] == "model 'other' is unknown; here is line"
    client.ask(1, model_version="r9")
    assert client.hear()["error"] == "revision 'r9' does not serve; serving is words"
    assert client.ask_one()["outputs"]["word"] == ["w0"]


@pytest.mark.parametrize("how", ["cancel", "kill"])
def test_a_client_that_leaves_closes_the_generator_and_the_worker_goes_on(
    server: Answering, client: Streaming, how: str
) -> None:
    closed, tracebacks = (log_of(server).count(word) for word in ("closed left", "Traceback"))
    with counted(server, left=1):
        client.ask(1 << 40, "left")
        pid = client.hear()["outputs"]["pid"]
        client.do("cancel") if how == "cancel" else client.process.kill()
        eventually(lambda: log_of(server).count("closed left") == closed + 1)
    with streaming(server.grpc_port) as other:
        assert other.ask_one()["outputs"]["pid"] == pid
    assert log_of(server).count("Traceback") == tracebacks


def test_a_client_that_does_not_read_holds_a_worker_no_longer_than_allowed_and_fills_no_memory(
    server: Answering, client: Streaming, tmp_path: Path
) -> None:
    before, go = resident_mib(server.private.process.pid), tmp_path / "go"
    server.share(brief=100)
    refused = server.counted("brief").get("refused", 0)
    client.do("hold", file=str(go))
    client.ask(1 << 40, "big")
    client.hear()
    eventually(lambda: server.public.ask("POST", "/v2/models/line/infer", http(1))[0] == 200)
    assert resident_mib(server.private.process.pid) - before < 64
    go.touch()
    *_, last = iter(client.hear, {"error": LATE, "status": None})
    assert last["outputs"]["word"] == ["w" * 100_000]
    eventually(lambda: server.counted("brief").get("refused", 0) > refused)


@pytest.mark.nightly
def test_a_client_that_reads_nothing_for_a_minute_counts_as_one_that_left(
    server: Answering, client: Streaming, setup: Any, tmp_path: Path
) -> None:
    """Also what a long request holds of the memory for bodies is free then."""
    predict = PREDICT.replace('act == "big"', 'act.startswith("big")')
    long = {**setup, "request_seconds": 600.0}
    load(server, "long", write_words(tmp_path / "long", predict=predict), setup=long)
    server.share(long=100)
    with counted(server, "long", left=1):
        client.do("hold", file=str(tmp_path / "go"))
        client.ask(1 << 40, "big" + "." * 100_000)
        client.hear()
        eventually(lambda: "closed big" in log_of(server))
    (tmp_path / "go").touch()
    unread = {"error": "nothing of an answer was read for 60 s", "status": "StatusCode.UNAVAILABLE"}
    *_, last = iter(client.hear, unread)
    assert last["version"] == "long"


def test_a_model_that_does_not_stream_answers_once_and_is_kept(
    server: Answering, client: Streaming, tmp_path: Path
) -> None:
    order = {"folder": str(tmp_path), "share": 1.0, "leave_out": [], "hashed": [], "key": ""}
    load(server, "kept", onnx_graph.write_line(tmp_path / "kept", slope=3), log=order)
    server.share(kept=100)
    with counted(server, "kept", answered=1, refused=1):
        client.do("ask", inputs=x(3, 4.5), enable_empty_final_response=True)
        answer = client.hear()
        assert (answer["outputs"], answer["version"]) == ({"y": [9.0, 13.5]}, "kept")
        assert answer["told"]["triton_final_response"] is False
        assert client.hear()["told"] == {"triton_final_response": True}
        client.do("ask", inputs=inputs(1))
        assert client.hear()["error"] == "input 'count' is unknown; this model takes x"
    identity = answer["told"]["muster-prediction"].encode()
    eventually(lambda: any(identity in file.read_bytes() for file in tmp_path.glob("*.spool")))


def test_a_stream_needs_a_token_and_each_request_of_it_counts_for_the_limit(server: Answering) -> None:
    few = limits(rate=NOWHERE, burst=2)
    test_clients.admit(server, token("shop", SHOP), token("bank", BANK), limits=few)
    with streaming(server.grpc_port) as stranger:
        stranger.ask(1)
        refused = stranger.hear()
        assert refused == {
            "error": "this deployment needs a token: send the header Authorization: Bearer TOKEN",
            "status": "StatusCode.UNAUTHENTICATED",
        }
    with streaming(server.grpc_port, authorization=f"Bearer {SHOP}") as shop:
        for _ in range(3):
            shop.ask(1)
        assert shop.words(2) == ["w0", "w0"]
        limited = shop.hear()
        assert (limited["status"], "client shop has 1e-06 requests a second" in limited["error"]) == (
            None,
            True,
        )
        test_clients.admit(server, token("shop", SHOP, ended=86400.0), token("bank", BANK))
        shop.ask(1)
        ended = shop.hear()
        assert (ended["status"], "the token of shop was ended" in ended["error"]) == (
            "StatusCode.UNAUTHENTICATED",
            True,
        )
    assert SHOP not in log_of(server)


def test_parts_pass_from_another_process_as_they_come(
    server: Answering,
    client: Streaming,
    start: Any,  # noqa: F811
    setup: Any,
    tmp_path: Path,
) -> None:
    go = tmp_path / "go"
    with bound() as sockets, start(*sockets) as other:
        load(other, "away", write_words(tmp_path / "away"), setup=setup)
        server.share(away=100, ports={"away": other.private.port})
        with counted(other, "away", answered=2, failed=1, left=1):
            client.ask(2, str(go), request_id="7")
            assert client.hear()["version"] == "away"
            go.touch()
            assert client.words(1) == ["w1"]
            client.ask(5, "raise")
            assert client.words(3) == ["w0", "w1", "w2"]
            assert client.hear()["error"].startswith("the model failed: ValueError")
            client.ask(2, "big", enable_empty_final_response=True)
            assert [len(word) for word in client.words(2)] == [100_000] * 2
            assert client.hear()["told"] == {"triton_final_response": True}
            with streaming(server.grpc_port) as leaving:
                leaving.ask(1 << 40)
                leaving.hear()
        client.ask(2, str(tmp_path / "never"))
        assert client.words(1) == ["w0"]
        os.killpg(other.private.process.pid, signal.SIGKILL)
        assert client.hear()["error"].startswith("the process of this revision")


def test_a_server_that_drains_answers_what_was_asked_and_ends_the_stream(
    server: Answering, client: Streaming, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    client.ask(2, str(go))
    client.ask(1)
    assert client.words(1) == ["w0"]
    assert server.do("drain") == {"id": 1}
    go.touch()
    assert client.words(2) == ["w1", "w0"]
    assert client.hear() == {"error": LEFT, "status": "StatusCode.UNAVAILABLE"}
    assert server.do("open") == {"id": 1}
    with streaming(server.grpc_port) as again:
        again.ask(1)
        assert again.words(1) == ["w0"]


def test_a_client_that_never_pauses_is_sent_away_between_two_answers(
    server: Answering, client: Streaming
) -> None:
    asked = 300
    for _ in range(asked):
        client.ask(1, "slow")  # 0.2 s
    assert client.words(1) == ["w0"]
    assert server.do("drain") == {"id": 1}
    answers = list(iter(client.hear, {"error": LEFT, "status": "StatusCode.UNAVAILABLE"}))
    assert 0 < len(answers) < asked
    assert {tuple(one["outputs"]["word"]) for one in answers} == {("w0",)}
    assert server.do("open") == {"id": 1}


def test_a_server_that_ends_waits_for_no_stream_without_requests(
    start: Any,  # noqa: F811
    setup: Any,
    tmp_path: Path,
) -> None:
    with bound() as sockets, start(*sockets) as server:
        load(server, "words", write_words(tmp_path / "words"), setup=setup)
        server.share(words=100)
        server.do("open")
        with streaming(server.grpc_port) as client:
            client.ask(1)
            assert client.words(1) == ["w0"]
            server.private.process.terminate()
            assert client.hear() == {"error": LEFT, "status": "StatusCode.UNAVAILABLE"}
            assert server.private.process.wait(20) == 0  # a request under way may take 30 s


def test_a_server_that_ends_waits_for_no_connection_without_requests(start: Any, tmp_path: Path) -> None:  # noqa: F811
    """A gateway keeps its connection, also when it is told to ask elsewhere."""
    with bound() as sockets, start(*sockets) as server:
        server.do("open")
        with socket.create_connection(("127.0.0.1", server.grpc_port)) as kept:
            kept.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0")  # with empty settings
            assert kept.recv(9)
            server.private.process.terminate()
            assert server.private.process.wait(20) == 0  # a request under way may take 30 s
