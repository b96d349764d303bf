"""The keeper's line of commands: load beside, promote, unload, drain; and who sees what meanwhile."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.serving import onnx_graph
from tests.serving.conftest import Server

pytestmark = pytest.mark.slow

BODY = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [3.0]}]}


@dataclass(frozen=True)
class Commanded:
    """A server, its two doors and its line of commands."""

    public: Server
    private: Server
    line: Any
    end: socket.socket

    def do(self, action: str, revision: str = "", **more: str) -> dict[str, Any]:
        self.line.write(json.dumps({"id": 1, "do": action, "revision": revision, **more}) + "\n")
        self.line.flush()
        answer: dict[str, Any] = json.loads(self.line.readline())
        return answer


@pytest.fixture
def server(python: Callable[[str], Path], run_server: Any, tmp_path: Path) -> Iterator[Commanded]:
    doors = [socket.socket() for _ in range(2)]
    for door in doors:
        door.bind(("127.0.0.1", 0))
    ours, theirs = socket.socketpair()
    ports = [door.getsockname()[1] for door in doors]
    fds = [*(door.fileno() for door in doors), theirs.fileno()]
    flags = zip(("--public-fd", "--private-fd", "--control-fd"), map(str, fds), strict=True)
    words = [str(python("serve")), "-P", "-m", "muster_serving", "line", *(w for pair in flags for w in pair)]
    running = run_server(words, port=ports[1], ready="/v2/health/live", log=tmp_path / "log", pass_fds=fds)
    with ours, ours.makefile("rw") as line, running as private:
        for one in (*doors, theirs):
            one.close()
        yield Commanded(Server(private.process, ports[0], private.log), private, line, ours)


@pytest.fixture
def models(tmp_path: Path) -> dict[str, str]:
    return {str(n): str(onnx_graph.write_line(tmp_path / f"m{n}", slope=n)) for n in (1, 2)}


def test_a_revision_is_asked_in_private_before_it_serves(server: Commanded, models: dict[str, str]) -> None:
    assert server.private.ask("POST", "/v2/models/line/infer", BODY)[0] == 503
    assert server.private.ask("GET", "/v2/health/ready")[0] == 503
    with pytest.raises(ConnectionRefusedError):
        server.public.ask("GET", "/v2/health/live")
    assert server.do("load", "1", folder=models["1"]) == {"id": 1}
    assert server.private.ask("POST", "/v2/models/line/versions/1/infer", BODY)[0] == 200
    with pytest.raises(ConnectionRefusedError):
        server.public.ask("GET", "/v2/health/live")
    assert server.do("promote", "1") == {"id": 1}
    assert server.public.ask("POST", "/v2/models/line/infer", BODY)[1]["outputs"][0]["data"] == [3.0]


def test_users_never_reach_a_candidate(server: Commanded, models: dict[str, str]) -> None:
    server.do("load", "1", folder=models["1"])
    server.do("promote", "1")
    server.do("load", "2", folder=models["2"])
    path = "/v2/models/line/versions/2/infer"
    assert server.private.ask("POST", path, BODY)[1]["outputs"][0]["data"] == [6.0]
    assert server.public.ask("POST", path, BODY) == (
        404,
        {"error": "revision '2' does not serve; serving is 1"},
    )
    server.do("promote", "2")
    assert server.public.ask("POST", path, BODY)[1]["outputs"][0]["data"] == [6.0]
    assert server.do("unload", "1") == {"id": 1}
    assert server.private.ask("POST", "/v2/models/line/versions/1/infer", BODY)[0] == 404
    assert 'revision="1"' not in server.public.ask("GET", "/metrics")[1]


def test_what_cannot_be_done_is_said(server: Commanded, models: dict[str, str], tmp_path: Path) -> None:
    server.do("load", "1", folder=models["1"])
    server.do("promote", "1")
    assert "signature.json is missing" in server.do("load", "2", folder=str(tmp_path / "nowhere"))["error"]
    assert "promote another one" in server.do("unload", "1")["error"]
    assert "revision '9' of line is not loaded; loaded: 1" in server.do("promote", "9")["error"]
    assert "loaded already from" in server.do("load", "1", folder=models["2"])["error"]
    assert "known are load, promote, unload and drain" in server.do("delete", "1")["error"]
    assert server.public.ask("POST", "/v2/models/line/infer", BODY)[0] == 200


def test_a_server_that_drains_sends_its_clients_elsewhere(server: Commanded, models: dict[str, str]) -> None:
    server.do("load", "1", folder=models["1"])
    server.do("promote", "1")
    client = http.client.HTTPConnection("127.0.0.1", server.public.port, timeout=10)
    for closing in (None, "close"):
        client.request("POST", "/v2/models/line/infer", json.dumps(BODY))
        response = client.getresponse()
        assert response.read()
        assert (response.status, response.getheader("connection")) == (200, closing)
        assert server.do("drain") == {"id": 1}
    with pytest.raises(ConnectionRefusedError):
        server.public.ask("GET", "/v2/health/live")


def test_the_server_ends_when_its_keeper_hangs_up(server: Commanded) -> None:
    server.end.shutdown(socket.SHUT_RDWR)
    assert server.private.process.wait(30) == 0
