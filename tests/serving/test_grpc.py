"""gRPC beside HTTP, from one process: the same answers, words and counts; and what clients see of servers that come and go."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.packages import installed
from tests.serving import onnx_graph, python_model, test_clients
from tests.serving.conftest import Server
from tests.serving.grpc_users import Asker, asking, raw, typed, users, values
from tests.serving.slow_link import slow_link
from tests.serving.test_clients import BANK, KEY, NOWHERE, SHOP, limits, token
from tests.serving.test_control import BODY, INFER, Commanded
from tests.waiting import GUARD_SECONDS, eventually

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
HELD_MIB = 256  # of all clients' messages together


@dataclass(frozen=True)
class Answering(Commanded):
    """A server with a public socket of gRPC."""

    grpc_port: int

    def do(self, action: str, revision: str = "", **more: Any) -> dict[str, Any]:
        """Leave out what it says meanwhile of its workers."""
        answer = super().do(action, revision, **more)
        while "told" in answer:
            answer = json.loads(self.line.readline())
        return answer


@pytest.fixture(scope="module")
def start(
    command: list[str], run_server: Any, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Any]:
    """Starts a server on two public sockets, of HTTP and of gRPC, which it may share with others."""

    @contextmanager
    def start(public: socket.socket, grpc: socket.socket) -> Iterator[Answering]:
        private = socket.socket()
        private.bind(("127.0.0.1", 0))
        ours, theirs = socket.socketpair()
        fds = [public.fileno(), grpc.fileno(), private.fileno(), theirs.fileno()]
        flags = zip(("--public-fd", "--grpc-fd", "--private-fd", "--control-fd"), map(str, fds), strict=True)
        port, log = private.getsockname()[1], tmp_path_factory.mktemp("server") / "log"
        words = [*command, "line", *(word for pair in flags for word in pair)]
        running = run_server(words, port=port, ready="/v2/health/live", log=log, pass_fds=fds)
        with ours, ours.makefile("rw") as line, running as started:
            for one in (private, theirs):
                one.close()
            users = Server(started.process, public.getsockname()[1], started.log)
            yield Answering(users, started, line, ours, grpc.getsockname()[1])

    return start


@contextmanager
def bound() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.socket() as public, socket.socket() as grpc:
        for each in (public, grpc):
            each.bind(("127.0.0.1", 0))
        yield public, grpc


@pytest.fixture(scope="module")
def running(start: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Answering]:
    with bound() as sockets, start(*sockets) as server:
        load(server, "r1", onnx_graph.write_line(tmp_path_factory.mktemp("r1"), slope=2))
        yield server


@pytest.fixture
def server(running: Answering) -> Answering:
    """A server that answers with ``y = 2 x`` and has counted nothing."""
    assert running.share(r1=100) == {"id": 1}
    assert running.do("open") == {"id": 1}
    return running


@pytest.fixture
def pair(start: Any, tmp_path: Path) -> Iterator[tuple[Answering, Answering]]:
    """Two servers on the same sockets: ``y = 2 x``, which accepts, and ``y = 3 x``."""
    with bound() as sockets, start(*sockets) as one, start(*sockets) as other:
        load(one, "r1", onnx_graph.write_line(tmp_path / "r1", slope=2))
        load(other, "r2", onnx_graph.write_line(tmp_path / "r2", slope=3))
        assert one.share(r1=50, r2=50, ports={"r2": other.private.port}) == {"id": 1}
        assert one.do("open") == {"id": 1}
        yield one, other


@pytest.fixture
def client(server: Answering, python: Callable[[str], Path]) -> Iterator[Asker]:
    with asking(python("kserve"), server.grpc_port) as client:
        yield client


def load(server: Answering, revision: str, folder: Path, **more: Any) -> None:
    loaded = server.do("load", revision, folder=str(folder), model=f"volume://line/{revision}@1", **more)
    assert loaded == {"id": 1}


@contextmanager
def counted(server: Answering, **expected: int) -> Iterator[None]:
    """Expect that so many requests are counted of r1 in the block."""
    before = server.counted("r1")
    yield
    after = server.counted("r1")
    assert {key: n - before.get(key, 0) for key, n in after.items() if n != before.get(key, 0)} == expected


def test_both_forms_of_values_are_answered_in_their_own(server: Answering, client: Asker) -> None:
    with counted(server, answered=3):
        for form, given in ((typed, "contents"), (raw, "raw_output_contents")):
            answer = client.ask("ModelInfer", form("line", [3, 4.5], id="mine"))
            assert (answer["status"], values(answer)) == ("OK", [6.0, 9.0])
            message = answer["message"]
            assert (message["model_name"], message["model_version"], message["id"]) == ("line", "r1", "mine")
            (output,) = message["outputs"]
            assert (output["name"], output["datatype"], output["shape"]) == ("y", "FP32", ["2"])
            assert ("contents" in output) is (given == "contents")
            assert answer["told"] == {"muster-revision": "r1", "muster-model": "volume://line/r1@1"}
        assert values(client.ask("ModelInfer", raw("line", [1], outputs=[{"name": "y"}]))) == [2.0]
    with counted(server):  # a request that names a revision is not counted
        assert values(client.ask("ModelInfer", typed("line", [1], model_version="r1"))) == [2.0]


def test_pages_are_those_of_http(server: Answering, client: Asker) -> None:
    assert client.ask("ServerLive")["message"] == {"live": True}
    assert client.ask("ServerReady")["message"] == {"ready": True}
    assert client.ask("ServerMetadata")["message"] == server.public.ask("GET", "/v2")[1]
    for named in ({}, {"version": "r1"}):
        assert client.ask("ModelReady", {"name": "line", **named})["message"] == {"ready": True}
        described = client.ask("ModelMetadata", {"name": "line", **named})["message"]
        found = server.public.ask("GET", "/v2/models/line")[1]
        for side in ("inputs", "outputs"):
            found[side] = [{**one, "shape": [str(size) for size in one["shape"]]} for one in found[side]]
        assert described.items() >= found.items()
    unknown = client.ask("ModelMetadata", {"name": "other"})
    assert (unknown["status"], unknown["said"]) == ("NOT_FOUND", "model 'other' is unknown; here is line")
    assert client.ask("ModelReady", {"name": "other"})["status"] == "NOT_FOUND"


TENSOR: dict[str, Any] = {"name": "x", "datatype": "FP32", "shape": [1]}


REFUSED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"datatype": "FP64", "contents": {"fp64_contents": [1]}}, {"datatype": "FP64", "data": [1]}),
    ({"datatype": "FP16", "contents": {"bytes_contents": [""]}}, {"datatype": "FP16", "data": [1]}),
    ({"name": "z", "contents": {"fp32_contents": [1]}}, {"name": "z", "data": [1]}),
    ({"shape": [2], "contents": {"fp32_contents": [1]}}, {"shape": [2], "data": [1]}),
    ({"shape": [], "contents": {"fp32_contents": [1]}}, {"shape": [], "data": [1]}),
    ({"shape": [-1], "contents": {"fp32_contents": [1]}}, {"shape": [-1], "data": [1]}),
    ({"shape": [0], "contents": {}}, {"shape": [0], "data": []}),
    ({"contents": {"fp32_contents": ["NaN"]}}, {"data": [float("nan")]}),
    ({"shape": [2], "contents": {"fp32_contents": [1, "Infinity"]}}, {"shape": [2], "data": [1, 1e999]}),
]


def test_what_http_refuses_grpc_refuses_with_its_words(server: Answering, client: Asker) -> None:
    for tensor, body in REFUSED:
        with counted(server, refused=2):
            status, answer = server.public.ask("POST", INFER, {"inputs": [{**TENSOR, **body}]})
            refused = client.ask("ModelInfer", {"model_name": "line", "inputs": [{**TENSOR, **tensor}]})
        assert (status, refused["status"]) == (400, "INVALID_ARGUMENT")
        assert refused["said"] == answer["error"]
        assert refused["told"] == {"muster-revision": "r1", "muster-model": "volume://line/r1@1"}


def test_what_only_grpc_can_get_wrong_is_refused_and_said(server: Answering, client: Asker) -> None:
    def refused(message: dict[str, Any]) -> str:
        answer = client.ask("ModelInfer", {"model_name": "line", **message})
        assert answer["status"] == "INVALID_ARGUMENT"
        said: str = answer["said"]
        return said

    tensor, value = {**TENSOR, "contents": {"fp32_contents": [1]}}, "AACAPw=="
    with counted(server, refused=6):
        assert refused({"inputs": [tensor], "raw_input_contents": [value]}) == (
            "input 'x': found contents and raw_input_contents, expected one of the two"
        )
        assert refused({"inputs": [TENSOR], "raw_input_contents": [value, value]}) == (
            "found 2 raw_input_contents for 1 inputs: each input needs one"
        )
        assert refused({"inputs": [TENSOR], "raw_input_contents": ["AACA"]}) == (
            "input 'x': 3 bytes are no whole number of FP32, which has 4 bytes"
        )
        assert refused({"inputs": [{**TENSOR, "contents": {"int_contents": [1]}}]}) == (
            "input 'x': found int_contents, expected fp32_contents for FP32"
        )
        assert refused({"inputs": [tensor, tensor]}) == "input 'x' is there twice"
        assert refused({}) == "input 'x' is missing; this model takes x"
    broken = client.ask("ModelInfer", bytes="ff")
    assert (broken["status"], broken["said"]) == (
        "INVALID_ARGUMENT",
        "the message is not a ModelInferRequest of inference.GRPCInferenceService",
    )
    assert client.ask("RepositoryModelLoad")["status"] == "UNIMPLEMENTED"
    long = client.ask("ModelInfer", bytes="00", times=17 << 20)
    assert (long["status"], "at most 16777216 are read" in long["said"]) == ("RESOURCE_EXHAUSTED", True)
    named = client.ask("ModelInfer", typed("line", [1], model_version="r9"))
    assert (named["status"], named["said"]) == (
        "NOT_FOUND",
        "revision 'r9' does not serve; serving is r1",
    )
    assert values(client.ask("ModelInfer", typed("line", [1]))) == [2.0]
    assert "Traceback" not in server.private.log.read_text()


def test_texts_whole_numbers_and_truths_keep_their_values(
    server: Answering, client: Asker, python: Callable[[str], Path], tmp_path: Path
) -> None:
    columns = [
        {"name": "text", "datatype": "BYTES", "categories": ["a", "é"]},
        {"name": "small", "datatype": "INT8"},
        {"name": "big", "datatype": "UINT64"},
        {"name": "flag", "datatype": "BOOL"},
    ]
    folder = tmp_path / "kinds"
    folder.mkdir()
    (folder / "predict.py").write_text(
        "def load(folder): return list('tsbf')\n"
        "def predict(_, x):\n"
        "    rows = zip(x['text'], x['small'], x['big'], x['flag'])\n"
        "    return {'told': [f'{t} {s} {b} {f}' for t, s, b, f in rows], 'big': x['big']}\n"
    )
    outputs = [{"name": "told", "datatype": "BYTES"}, {"name": "big", "datatype": "UINT64"}]
    python_model.write_signature(folder, columns, outputs)  # type: ignore[arg-type]
    load(server, "kinds", folder, setup={"python": str(python("serve")), "memory_gib": 1.0})
    assert server.share(kinds=100) == {"id": 1}
    most = (1 << 64) - 1
    given = {
        "text": ("BYTES", {"bytes_contents": ["w6k="]}, "AgAAAMOp"),
        "small": ("INT8", {"int_contents": [-7]}, "+Q=="),
        "big": ("UINT64", {"uint64_contents": [str(most)]}, "//////////8="),
        "flag": ("BOOL", {"bool_contents": [True]}, "AQ=="),
    }
    tensors = [{"name": name, "datatype": kind, "shape": [1]} for name, (kind, _, _) in given.items()]
    contents = [{**one, "contents": given[one["name"]][1]} for one in tensors]
    answer = client.ask("ModelInfer", {"model_name": "line", "inputs": contents})
    told, big = (one["contents"] for one in answer["message"]["outputs"])
    assert (told["bytes_contents"], big["uint64_contents"]) == (
        ["w6kgLTcgMTg0NDY3NDQwNzM3MDk1NTE2MTUgVHJ1ZQ=="],
        [str(most)],
    )
    inputs = [bytes_ for _, _, bytes_ in given.values()]
    answer = client.ask("ModelInfer", {"model_name": "line", "inputs": tensors, "raw_input_contents": inputs})
    assert answer["message"]["raw_output_contents"] == [
        "HwAAAMOpIC03IDE4NDQ2NzQ0MDczNzA5NTUxNjE1IFRydWU=",
        "//////////8=",
    ]
    contents[1]["contents"] = {"int_contents": [300]}
    refused = client.ask("ModelInfer", {"model_name": "line", "inputs": contents})
    assert (refused["status"], refused["said"]) == (
        "INVALID_ARGUMENT",
        "input 'small': found 300 at position 0, expected INT8 values",
    )


@pytest.mark.data
def test_tritonclient_asks_all_that_there_is(server: Answering) -> None:
    done = subprocess.run(
        [sys.executable, str(HERE / "triton_client.py"), str(server.grpc_port)],
        env={**os.environ, "PYTHONPATH": str(installed(HERE / "triton" / "requirements.txt"))},
        capture_output=True,
        text=True,
        check=False,
        timeout=GUARD_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "live": True,
        "model": "line",
        "server": "muster",
        "id": "mine",
        "version": "r1",
        "y": [6.0, 9.0],
        "named": [6.0, 9.0],
        "refused": "StatusCode.INVALID_ARGUMENT: input 'x': datatype is 'FP64', expected FP32",
    }


def test_a_deadline_ends_a_request_and_one_that_waits_is_never_computed(
    server: Answering, client: Asker, python: Callable[[str], Path], tmp_path: Path
) -> None:
    """The worker waits for a file where it is asked for 110; what waits behind it longer than its client is left out."""
    said, go = tmp_path / "computed", tmp_path / "go"
    told = f"    open({str(said)!r}, 'a').write(f'{{x.tolist()}} ')\n"
    wait = f"    while not os.path.exists({str(go)!r}):\n        time.sleep(0.01)\n"
    source = python_model.PREDICT.replace('    x = inputs["x"]\n', '    x = inputs["x"]\n' + told)
    source = source.replace("    time.sleep(1)\n", wait)
    folder = python_model.write_line(tmp_path / "slow", predict=source)
    load(server, "slow", folder, setup={"python": str(python("serve")), "memory_gib": 1.0})
    assert server.share(slow=100) == {"id": 1}
    with asking(python("kserve"), server.grpc_port) as other:
        client.send("ModelInfer", typed("line", [110]))
        eventually(said.exists)
        assert other.ask("ModelInfer", typed("line", [5]), seconds=0.5)["status"] == "DEADLINE_EXCEEDED"
        other.send("ModelInfer", typed("line", [6]))
        other.leave()
        go.touch()
        assert client.hear()["status"] == "OK"
        assert client.ask("ModelInfer", typed("line", [7]))["status"] == "OK"
    # one that waited in vain was asked all the same; of the two that left one may have left before it was heard
    assert server.counted("slow")["left"] in (1, 2)
    assert "[5.0]" not in said.read_text()
    assert said.read_text().endswith("[7.0] ")


def test_the_models_own_error_is_internal(
    server: Answering, client: Asker, python: Callable[[str], Path], tmp_path: Path
) -> None:
    setup = {"python": str(python("serve")), "memory_gib": 1.0, "request_seconds": 1.0}
    load(server, "bad", python_model.write_line(tmp_path / "bad"), setup=setup)
    assert server.share(bad=100) == {"id": 1}
    for value, said in (
        (101, "the model failed: ValueError: unlucky (predict.py:24)"),
        (203, "the model's process gave no answer within 1 s (request_timeout), and was ended"),
    ):
        answer = client.ask("ModelInfer", typed("line", [value]))
        assert (answer["status"], answer["said"]) == ("INTERNAL", said)


def test_many_at_once_over_http_and_grpc(server: Answering, python: Callable[[str], Path]) -> None:
    before = server.counted("r1").get("answered", 0)
    with users(python("kserve"), server.grpc_port, raw("line", [3]), connections=64) as answers:
        eventually(lambda: server.counted("r1").get("answered", 0) > before + 1000)
        assert server.answers(50) == {"r1": 50}
    assert set(answers) == {"revision r1"}
    assert server.counted("r1")["answered"] == before + 50 + answers["revision r1"]


def test_bytes_that_are_no_http2_cost_their_connection_alone(server: Answering, client: Asker) -> None:
    for data in (
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff" * 100_000,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 100,
    ):
        with socket.create_connection(("127.0.0.1", server.grpc_port)) as connection:
            connection.settimeout(20)
            try:
                connection.sendall(data)
                while connection.recv(1 << 16):
                    continue
            except ConnectionResetError:
                pass
        assert client.ask("ServerLive")["status"] == "OK"


def test_no_request_is_lost_when_servers_take_turns(
    pair: tuple[Answering, Answering], python: Callable[[str], Path]
) -> None:
    one, other = pair
    ports = {"r1": one.private.port, "r2": other.private.port}

    def answered() -> float:
        return sum(server.counted(name).get("answered", 0) for server, name in ((one, "r1"), (other, "r2")))

    with users(python("kserve"), one.grpc_port, raw("line", [3]), connections=16) as answers:
        for front, behind in ((other, one), (one, other)) * 3:
            sent = answered()
            for server in (front, behind):
                assert server.share(r1=50, r2=50, ports=ports) == {"id": 1}
            assert front.do("open") == behind.do("drain") == {"id": 1}
            eventually(lambda sent=sent: answered() > sent + 200)
    assert set(answers) == {"revision r1", "revision r2"}
    assert answered() == sum(answers.values())  # a share is passed on, and counted where it is answered
    with asking(python("kserve"), one.grpc_port) as client:
        one.share(r2=100, ports=ports)
        for form in (typed, raw):
            answer = client.ask("ModelInfer", form("line", [3]))
            assert (values(answer), answer["told"]["muster-revision"]) == ([9.0], "r2")
        assert client.ask("ModelMetadata", {"name": "line"})["message"]["versions"] == ["r2"]


def test_a_server_that_ends_answers_what_it_was_asked_and_the_next_takes_over_from_one_that_is_killed(
    pair: tuple[Answering, Answering], python: Callable[[str], Path], tmp_path: Path
) -> None:
    one, other = pair
    one.share(r1=100)
    begun = tmp_path / "begun"
    source = python_model.PREDICT.replace(
        "    time.sleep(1)\n", f"    open({str(begun)!r}, 'w').close()\n    time.sleep(1)\n"
    )
    folder = python_model.write_line(tmp_path / "slow", predict=source)
    load(other, "slow", folder, setup={"python": str(python("serve")), "memory_gib": 1.0})
    with asking(python("kserve"), one.grpc_port) as client:
        assert values(client.ask("ModelInfer", raw("line", [3]))) == [6.0]
        one.private.process.kill()
        one.private.process.wait()
        other.share(slow=100)
        assert other.do("open") == {"id": 1}
        eventually(lambda: client.ask("ModelInfer", raw("line", [3]))["status"] == "OK")
        client.send("ModelInfer", typed("line", [110]))
        eventually(begun.exists)
        other.private.process.terminate()
        assert client.hear()["status"] == "OK"
        assert other.private.process.wait(GUARD_SECONDS) == 0


@pytest.mark.data
def test_a_server_that_ends_waits_for_a_request_and_an_answer_on_their_way(
    start: Any, python: Callable[[str], Path], tmp_path: Path
) -> None:
    setup = {"python": str(python("serve")), "memory_gib": 1.0}
    rows = [1.0] * 4096  # 16 KB each way, at 4 KB a second
    with bound() as sockets, start(*sockets) as server:
        load(server, "line", python_model.write_line(tmp_path / "line"), setup=setup)
        server.share(line=100)
        server.do("open")
        with (
            slow_link(server.grpc_port, bytes_a_second=4_000) as link,
            asking(python("kserve"), link.port) as client,
        ):
            client.send("ModelInfer", raw("line", rows), seconds=60)
            eventually(lambda: link.passed > 4_000)
            server.private.process.terminate()
            answer = client.hear()
        assert answer["status"] == "OK", answer
        assert len(values(answer)) == len(rows)
        assert server.private.process.wait(GUARD_SECONDS) == 0


def frames(server: Answering, python: Callable[[str], Path], *words: str) -> Any:
    """Send frames that gRPC's clients do not."""
    command = [str(python("serve")), str(HERE / "grpc_frames.py"), str(server.grpc_port), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=GUARD_SECONDS, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["cut", "3"], ["3", "the message is cut off"]),
        (["cut", "5"], ["3", "the message is cut off"]),  # the loop went round for ever
        (["cut", "9"], ["3", "the message is cut off"]),
        (["cut", "0"], ["3", "the call has no message"]),
        (["empty"], ["", ""]),  # its answer begins
        (["timeout", "1S"], ["", ""]),
        *(
            (["timeout", value], ["13", "grpc-timeout: expected up to 8 digits and a unit"])
            for value in ("9" * 4000 + "H", "1", "-1S", "\xff")
        ),
        (["words"], ["content-type"]),  # not what differs in each answer
    ],
    ids=lambda words: "-".join(words)[:12],
)
def test_what_no_client_of_grpc_sends_is_answered(
    server: Answering, client: Asker, python: Callable[[str], Path], words: list[str], told: list[str]
) -> None:
    assert frames(server, python, *words) == told
    assert client.ask("ServerLive")["status"] == "OK"
    assert "a call of gRPC failed" not in server.private.log.read_text()


@pytest.mark.parametrize("how", ["resets", "pings", "settings"])
def test_a_client_that_floods_is_ended(
    server: Answering, client: Asker, python: Callable[[str], Path], how: str
) -> None:
    """CVE-2023-44487, and frames that ask nothing."""
    assert frames(server, python, how) is True
    assert client.ask("ServerLive")["status"] == "OK"
    assert "a call of gRPC failed" not in server.private.log.read_text()


def test_a_client_that_asks_nothing_is_told_to_go_and_answered_if_it_asks_after_all(
    server: Answering, python: Callable[[str], Path]
) -> None:
    *_, goaway, answer = frames(server, python, "idle")
    assert (goaway, answer) == (7, 1)


@pytest.mark.nightly
def test_a_message_that_does_not_come_is_awaited_for_a_minute(
    server: Answering, python: Callable[[str], Path]
) -> None:
    assert frames(server, python, "silent") == ["4", "no whole message came in 60 seconds"]


def test_words_come_as_they_are(client: Asker) -> None:
    answer = client.ask("ModelInfer", typed("lïne", [1]))
    assert (answer["status"], answer["said"]) == ("NOT_FOUND", "model 'lïne' is unknown; here is line")
    assert answer["told"] == {}


@pytest.fixture
def guarded(server: Answering) -> Iterator[Answering]:
    """The server while its users need a token."""
    test_clients.admit(server, token("shop", SHOP), token("bank", BANK), token("past", "past", ended=86400.0))
    yield server
    assert server.do("admit", needed=False) == {"id": 1}


def line(client: Asker, *words: str, **more: Any) -> dict[str, Any]:
    """Ask for a row, with these values of the metadata ``authorization``."""
    metadata = [["authorization", word] for word in words]
    return client.ask("ModelInfer", typed("line", [3]), metadata=metadata, **more)


def test_who_may_ask_is_said_in_http_s_words(guarded: Answering, client: Asker) -> None:
    before = test_clients.counted(guarded)
    for word in ("", "Bearer", "Basic c2hvcDpzaG9w", "Bearer guessed", f"Bearer {SHOP}x", "Bearer past"):
        refused = line(client, *([word] if word else []))
        headers = {"Authorization": word} if word else {}
        status, answer = guarded.public.ask("POST", INFER, BODY, **headers)
        assert (status, refused["status"]) == (401, "UNAUTHENTICATED"), word
        assert refused["said"] == answer["error"]
    assert refused["said"] == "the token of past was ended on 1970-01-02 00:00 UTC: ask for a new one"
    assert line(client, f"Bearer {SHOP}", f"Bearer {BANK}")["status"] == "UNAUTHENTICATED"
    for word in (f"Bearer {SHOP}", f"bearer {SHOP}", f"Bearer {BANK}"):
        assert values(line(client, word)) == [6.0]
    after = test_clients.counted(guarded)
    assert {key: n - before.get(key, 0) for key, n in after.items() if n != before.get(key, 0)} == {
        ("", "denied"): 11,
        ("past", "denied"): 2,
        ("shop", "accepted"): 2,
        ("bank", "accepted"): 1,
    }


def test_no_call_goes_round_a_token_but_those_of_health(guarded: Answering, client: Asker) -> None:
    closed = {
        "ServerMetadata": {},
        "ModelMetadata": {"name": "line"},
        "ModelInfer": typed("line", [3]),
    }
    named = {"ModelMetadata": {"name": "line", "version": "r1"}, "ModelInfer": typed("x", [3])}
    for call, message in (*closed.items(), *named.items()):
        for metadata in ([], [["muster-key", KEY]], [["muster-key", KEY], ["muster-client", "shop"]]):
            assert client.ask(call, message, metadata=metadata)["status"] == "UNAUTHENTICATED", call
    assert client.ask("ModelInfer", bytes="ff")["status"] == "UNAUTHENTICATED"
    for call, message in closed.items():
        metadata = [["authorization", f"Bearer {SHOP}"]]
        assert client.ask(call, message, metadata=metadata)["status"] == "OK"
    for call, message in (("ServerLive", {}), ("ServerReady", {}), ("ModelReady", {"name": "line"})):
        assert client.ask(call, message)["status"] == "OK"


@pytest.mark.parametrize(
    ("how", "needs"), [("gzip", True), ("plain", True), ("plain", False), ("stream", False)]
)
def test_many_long_messages_at_once_take_little_memory(
    guarded: Answering, client: Asker, python: Callable[[str], Path], how: str, needs: bool
) -> None:
    """A message of gzip may unpack to a thousand times its length. Those of a client without a token are not even read;
    of those who may ask, as much is held as over HTTP: 40 messages are 600 MiB.
    """
    if not needs:
        test_clients.admit(guarded, needed=False)
    of = Path(f"/proc/{guarded.private.process.pid}")
    (of / "clear_refs").write_text("5")  # the most so far
    before = memory(of / "status")
    words = [str(python("kserve")), str(HERE / "grpc_flood.py"), str(guarded.grpc_port), how, "40", "4"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    allowed = (
        {"UNIMPLEMENTED", "UNAUTHENTICATED"}
        if needs
        else {"INVALID_ARGUMENT", "UNAVAILABLE", "INTERNAL", "OK"}
    )
    answers = json.loads(done.stdout)
    assert answers.keys() <= allowed, answers
    assert memory(of / "status") - before < (100 if needs else 1.5 * HELD_MIB), answers
    assert line(client, f"Bearer {SHOP}")["status"] == "OK"


def memory(status: Path) -> int:
    """The most that a process has had, in MiB."""
    (found,) = (int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return found >> 10


def test_a_client_has_one_limit_over_both_protocols(guarded: Answering, client: Asker) -> None:
    few = limits(rate=NOWHERE, burst=4, body_bytes=1000)
    test_clients.admit(guarded, token("shop", SHOP), token("bank", BANK), limits=few)
    word = f"Bearer {SHOP}"
    for _ in range(2):
        assert test_clients.ask(guarded.public, SHOP)[0] == 200
        assert line(client, word)["status"] == "OK"
    status, answer = test_clients.ask(guarded.public, SHOP)
    refused = line(client, word)
    assert (status, refused["status"]) == (429, "RESOURCE_EXHAUSTED")
    assert refused["said"] == answer["error"]
    assert int(refused["told"]["retry-after"]) > 1
    assert client.ask("ServerMetadata", metadata=[["authorization", word]])["status"] == "OK"
    bank = [["authorization", f"Bearer {BANK}"]]
    for form in (typed, raw):
        long = client.ask("ModelInfer", form("line", [1.5] * 300), metadata=bank)
        assert (long["status"], "at most 1000 are read" in long["said"]) == ("RESOURCE_EXHAUSTED", True)
    assert client.ask("ModelInfer", raw("line", [1]), metadata=bank)["status"] == "OK"


def test_without_tokens_all_share_one_limit_over_both_protocols(guarded: Answering, client: Asker) -> None:
    test_clients.admit(guarded, needed=False, limits=limits(rate=NOWHERE, burst=2))
    assert (guarded.public.ask("POST", INFER, BODY)[0], line(client)["status"]) == (200, "OK")
    refused = line(client)
    assert (guarded.public.ask("POST", INFER, BODY)[0], refused["status"]) == (429, "RESOURCE_EXHAUSTED")
    assert "for all clients together" in refused["said"]


def test_a_token_is_ended_while_its_client_is_connected(guarded: Answering, client: Asker) -> None:
    assert line(client, f"Bearer {SHOP}")["status"] == "OK"
    test_clients.admit(guarded, token("shop", SHOP, ended=86400.0), token("bank", BANK))
    refused = line(client, f"Bearer {SHOP}")
    assert (refused["status"], "the token of shop was ended" in refused["said"]) == ("UNAUTHENTICATED", True)
    assert line(client, f"Bearer {BANK}")["status"] == "OK"


def test_no_token_is_ever_written(guarded: Answering, client: Asker, python: Callable[[str], Path]) -> None:
    line(client, f"Bearer {SHOP}")
    line(client, f"Basic {SHOP}")
    client.ask("ModelInfer", bytes="ff", metadata=[["authorization", f"Bearer {SHOP}"]])
    for word in (f"Bearer {SHOP}".encode() + end for end in (b"\xff", b"\0", b"\xe2\x82\xac")):
        assert "this token does not count" in frames(guarded, python, "metadata", word.hex())
    assert line(client, f"Bearer {SHOP}")["status"] == "OK"
    log = guarded.private.log.read_text()
    assert SHOP not in log
    assert KEY not in log
