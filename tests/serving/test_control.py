"""The keeper's line of commands: load beside, share, unload, open, drain; and who sees what meanwhile."""

from __future__ import annotations

import http.client
import json
import os
import re
import secrets
import socket
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.serving import onnx_graph
from tests.serving.conftest import Server
from tests.serving.load import Load
from tests.waiting import GUARD_SECONDS, until

pytestmark = pytest.mark.slow

INFER = "/v2/models/line/infer"
BODY: dict[str, Any] = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [3.0]}]}


@dataclass(frozen=True)
class Commanded:
    """A server, its two doors and its line of commands."""

    public: Server
    private: Server
    line: Any
    end: socket.socket

    def do(self, action: str, revision: str = "", **more: Any) -> dict[str, Any]:
        self.line.write(json.dumps({"id": 1, "do": action, "revision": revision, **more}) + "\n")
        self.line.flush()
        answer: dict[str, Any] = json.loads(self.line.readline())
        return answer

    def share(self, ports: dict[str, int] | None = None, **percents: int) -> dict[str, Any]:
        return self.do("share", shares=percents, ports=ports or {})

    def counted(self, revision: str) -> dict[str, float]:
        """What the server has counted of a revision, by outcome."""
        page = self.private.ask("GET", "/metrics")[1]
        found = re.findall(rf'muster_requests_total{{.*outcome="(\w+)",revision="{revision}"}} (\S+)', page)
        return {outcome: float(number) for outcome, number in found if float(number)}

    def answers(self, times: int) -> Counter[str]:
        """Who answers, of so many requests."""
        asked = (self.public.ask("POST", INFER, BODY) for _ in range(times))
        return Counter(answer["model_version"] for status, answer in asked if status == 200)


@pytest.fixture
def run(command: list[str], run_server: Any, tmp_path: Path) -> Callable[[], Any]:
    """Runs a server without a revision; several share their public socket."""
    public = socket.socket()
    public.bind(("127.0.0.1", 0))

    @contextmanager
    def run() -> Iterator[Commanded]:
        private = socket.socket()
        private.bind(("127.0.0.1", 0))
        ours, theirs = socket.socketpair()
        fds = [public.fileno(), private.fileno(), theirs.fileno()]
        flags = zip(("--public-fd", "--private-fd", "--control-fd"), map(str, fds), strict=True)
        port, log = private.getsockname()[1], tmp_path / f"log-{secrets.token_hex(3)}"
        words = [*command, "line", *(word for pair in flags for word in pair)]
        running = run_server(words, port=port, ready="/v2/health/live", log=log, pass_fds=fds)
        with ours, ours.makefile("rw") as line, running as started:
            for one in (private, theirs):
                one.close()
            users = Server(started.process, public.getsockname()[1], started.log)
            yield Commanded(users, started, line, ours)

    with public:
        yield run


@pytest.fixture
def server(run: Any) -> Iterator[Commanded]:
    with run() as server:
        yield server


@pytest.fixture
def models(tmp_path: Path) -> dict[str, str]:
    return {f"r{n}": str(onnx_graph.write_line(tmp_path / f"m{n}", slope=n)) for n in (1, 2)}


def test_a_revision_is_asked_in_private_before_it_serves(server: Commanded, models: dict[str, str]) -> None:
    assert server.private.ask("POST", INFER, BODY)[0] == 503
    assert server.private.ask("GET", "/v2/health/ready")[0] == 503
    assert server.do("load", "r1", folder=models["r1"]) == {"id": 1}
    assert server.private.ask("POST", "/v2/models/line/versions/r1/infer", BODY)[0] == 200
    with pytest.raises(ConnectionRefusedError):
        server.public.ask("GET", "/v2/health/live")
    assert server.share(r1=100) == {"id": 1}
    assert server.do("open") == server.do("open") == {"id": 1}
    assert server.public.ask("POST", INFER, BODY)[1]["outputs"][0]["data"] == [3.0]
    assert server.counted("r1") == {"answered": 1}  # a request that names a revision is not counted


def test_users_never_reach_a_candidate(server: Commanded, models: dict[str, str]) -> None:
    server.do("load", "r1", folder=models["r1"])
    server.share(r1=100)
    server.do("open")
    server.do("load", "r2", folder=models["r2"])
    path = "/v2/models/line/versions/r2/infer"
    assert server.private.ask("POST", path, BODY)[1]["outputs"][0]["data"] == [6.0]
    assert server.public.ask("POST", path, BODY) == (
        404,
        {"error": "revision 'r2' does not serve; serving is r1"},
    )
    assert server.public.ask("POST", f"/routed/r2{INFER}", BODY)[0] == 404
    assert server.public.ask("GET", "/routed/r2/v2/models/line")[0] == 404
    server.share(r2=100)
    assert server.public.ask("POST", path, BODY)[1]["outputs"][0]["data"] == [6.0]
    assert server.do("unload", "r1") == {"id": 1}
    assert server.private.ask("POST", "/v2/models/line/versions/r1/infer", BODY)[0] == 404
    assert server.counted("r1") == {}


def test_without_tokens_a_server_is_asked_by_this_machine_s_own_names_alone(
    server: Commanded, models: dict[str, str]
) -> None:
    server.do("load", "r1", folder=models["r1"])
    server.share(r1=100)
    server.do("open")
    asked = {
        host: server.public.ask("POST", INFER, BODY, Host=host)
        for host in ("localhost", "LocalHost:80", "127.0.0.1:8081", "127.1.2.3", "[::1]:8081")
    }
    assert {host: status for host, (status, _) in asked.items() if status != 200} == {}
    for host in ("evil.example", "localhost.evil.example:8081", "127.0.0.1.evil.example", "10.0.0.1", ""):
        for path in (INFER, "/v2/health/live", "/metrics", "/openapi.json"):
            for door in (server.public, server.private):
                status, answer = door.ask("POST" if path == INFER else "GET", path, BODY, Host=host)
                assert (status, host in answer["error"]) == (421, True), (host, path)
    assert server.do("admit", needed=True, limits=None, key="own", tokens=[]) == {"id": 1}
    assert server.public.ask("POST", INFER, BODY, Host="evil.example")[0] == 401
    assert server.public.ask("GET", "/v2/health/live", Host="evil.example")[0] == 200


def test_each_revision_has_its_share(server: Commanded, models: dict[str, str]) -> None:
    for revision, folder in models.items():
        server.do("load", revision, folder=folder)
    server.share(r1=80, r2=20)
    server.do("open")
    answers = server.answers(1000)
    assert answers.total() == 1000
    assert 120 < answers["r2"] < 290  # seven standard deviations
    assert server.counted("r1") == {"answered": answers["r1"]}
    assert server.counted("r2") == {"answered": answers["r2"]}
    assert {server.public.ask("GET", "/v2/models/line")[1]["versions"][0] for _ in range(20)} == {"r1"}
    server.share(r1=100)
    assert server.answers(20) == {"r1": 20}


def test_what_cannot_be_done_is_said(server: Commanded, models: dict[str, str], tmp_path: Path) -> None:
    server.do("load", "r1", folder=models["r1"])
    server.share(r1=100)
    server.do("open")
    assert "signature.json is missing" in server.do("load", "r2", folder=str(tmp_path / "nowhere"))["error"]
    assert "give its share to another" in server.do("unload", "r1")["error"]
    assert "revision 'r9' of line is not loaded; loaded: r1" in server.share(r1=50, r9=50)["error"]
    assert "need percents, in sum 100" in server.share(r1=50)["error"]
    assert "loaded already from" in server.do("load", "r1", folder=models["r2"])["error"]
    assert (
        "known are load, share, unload, open, drain, admit, finish and ping"
        in server.do("delete", "r1")["error"]
    )
    assert server.public.ask("POST", INFER, BODY)[0] == 200


def test_a_command_does_not_wait_for_one_that_takes_long(
    server: Commanded, models: dict[str, str], tmp_path: Path
) -> None:
    server.do("load", "r1", folder=models["r1"])
    folder = onnx_graph.write_line(tmp_path / "slow")
    signature = (folder / "signature.json").read_bytes()
    (folder / "signature.json").unlink()
    os.mkfifo(folder / "signature.json")  # loading waits until it is written
    server.line.write(json.dumps({"id": 7, "do": "load", "revision": "r2", "folder": str(folder)}) + "\n")
    assert server.share(r1=100) == {"id": 1}
    (folder / "signature.json").write_bytes(signature)
    assert json.loads(server.line.readline()) == {"id": 7}


def test_a_server_that_drains_sends_its_clients_elsewhere_and_may_come_back(
    server: Commanded, models: dict[str, str]
) -> None:
    server.do("load", "r1", folder=models["r1"])
    server.share(r1=100)
    server.do("open")
    client = http.client.HTTPConnection("127.0.0.1", server.public.port, timeout=GUARD_SECONDS)
    with closing(client):
        for ending in (None, "close"):
            client.request("POST", INFER, json.dumps(BODY))
            response = client.getresponse()
            assert response.read()
            assert (response.status, response.getheader("connection")) == (200, ending)
            assert server.do("drain") == {"id": 1}
        client.request("POST", INFER, json.dumps(BODY))  # it waits for the next server to accept
        assert server.do("open") == {"id": 1}
        assert client.getresponse().status == 200


class TestElsewhere:
    """Two processes on one public socket, each with a revision of its own."""

    @pytest.fixture
    def other(self, run: Any, models: dict[str, str]) -> Iterator[Commanded]:
        with run() as other:
            other.do("load", "r2", folder=models["r2"], model="volume://line/model@2")
            yield other

    @pytest.fixture
    def both(self, server: Commanded, other: Commanded, models: dict[str, str]) -> Commanded:
        server.do("load", "r1", folder=models["r1"])
        assert server.share(r1=50, r2=50, ports={"r2": other.private.port}) == {"id": 1}
        server.do("open")
        return server

    def test_a_share_is_passed_on_and_counted_where_it_is_answered(
        self, both: Commanded, other: Commanded
    ) -> None:
        answers = both.answers(400)
        assert answers.total() == 400
        assert 130 < answers["r2"] < 270  # seven standard deviations
        assert (both.counted("r1"), both.counted("r2")) == ({"answered": answers["r1"]}, {})
        assert other.counted("r2") == {"answered": answers["r2"]}

    def test_everything_that_can_be_asked_is_passed_on(self, both: Commanded, other: Commanded) -> None:
        both.share(r2=100, ports={"r2": other.private.port})
        ask = both.public.ask
        for path in ("/v2/models/line/infer", "/v2/models/line/versions/r2/infer"):
            assert ask("POST", path, BODY)[1]["outputs"][0]["data"] == [6.0]
        assert ask("POST", "/v1/models/line:predict", {"inputs": {"x": [3]}}) == (
            200,
            {"outputs": {"y": [6.0]}},
        )
        assert ask("POST", INFER, b"{")[0] == 400
        assert ask("GET", "/v2/models/line")[1]["versions"] == ["r2"]
        assert ask("GET", "/v2/health/ready") == (200, {"ready": True})
        long = {"inputs": [{**BODY["inputs"][0], "data": [3.0] * 60, "shape": [60]}], "id": "x" * 200_000}
        status, answer = ask("POST", INFER, long)
        assert (status, len(answer["id"]), answer["outputs"][0]["data"]) == (200, 200_000, [6.0] * 60)
        assert other.counted("r2") == {"answered": 3, "refused": 1}

        # Binary tensors and the version come through, too.
        tensor = {"name": "x", "datatype": "FP32", "shape": [1], "parameters": {"binary_data_size": 4}}
        head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
        body, length = head + struct.pack("<f", 3), {"Inference-Header-Content-Length": str(len(head))}
        status, headers, answer = both.public.exchange("POST", INFER, body, **length)
        assert (status, headers["content-type"]) == (200, "application/octet-stream")
        at = int(headers["inference-header-content-length"])
        assert struct.unpack("<f", answer[at:]) == (6.0,)
        assert (headers["muster-revision"], headers["muster-model"]) == ("r2", "volume://line/model@2")

    def test_what_the_other_process_leaves_unanswered_is_answered_here_and_held_against_it(
        self, both: Commanded, other: Commanded
    ) -> None:
        both.answers(20)
        other.private.process.kill()
        other.private.process.wait()
        answers = both.answers(100)
        assert answers == {"r1": 100}
        assert 0 < both.counted("r2")["failed"] < 100
        failed = both.counted("r2")
        status, answer = both.public.ask("POST", "/v2/models/line/versions/r2/infer", BODY)
        assert (status, "revision r2 does not answer" in answer["error"]) == (503, True)  # and no r1 instead
        assert both.counted("r2") == failed
        both.share(r2=100, ports={"r2": other.private.port})
        status, answer = both.public.ask("POST", INFER, BODY)
        assert (status, "revision r2 does not answer" in answer["error"]) == (503, True)

    def test_a_revision_that_was_unloaded_there_is_answered_here(
        self, both: Commanded, other: Commanded
    ) -> None:
        other.do("unload", "r2")
        assert both.answers(50) == {"r1": 50}

    def test_the_other_process_takes_over_without_a_lost_request(
        self, both: Commanded, other: Commanded
    ) -> None:
        ports = {"r1": both.private.port, "r2": other.private.port}
        with Load(both.public.port, INFER, BODY) as load:
            for front, behind in ((other, both), (both, other), (other, both)):
                sent = load.sent
                for one in (front, behind):
                    assert one.share(r1=50, r2=50, ports=ports) == {"id": 1}
                assert front.do("open") == behind.do("drain") == {"id": 1}
                assert until(lambda sent=sent: load.sent > sent + 200)
        assert load.failed == {}
        assert set(load.answers) == {"revision r1", "revision r2"}


def test_whatever_a_command_meets_it_is_answered(server: Commanded) -> None:
    server.end.settimeout(GUARD_SECONDS)
    assert server.do("load", "r1") == {"id": 1, "error": "KeyError: 'folder'"}
    assert server.do("share", shares="half", ports={})["error"].startswith("AttributeError: ")


def test_the_server_ends_when_its_keeper_hangs_up(server: Commanded) -> None:
    server.end.shutdown(socket.SHUT_RDWR)
    assert server.private.process.wait(GUARD_SECONDS) == 0
