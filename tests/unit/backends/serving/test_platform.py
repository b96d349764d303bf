"""What a deployment's servers are asked, some of which do not answer."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.unit.backends.serving.states import new, prepared, read, shifted

from muster.backends.local.serving import platform
from muster.backends.local.serving.platform import LocalPlatform
from muster.backends.local.serving.state import DeploymentState
from muster.core.data import Pinned
from muster.core.deployment import Answer, Counts, DeploymentSpec, SmokeRequest
from muster.core.settings import Settings

PAGE = """# TYPE muster_requests counter
muster_requests_total{model="f",outcome="answered",revision="r1"} 3.0
"""
METADATA = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [-1]}]}
ASKED = SmokeRequest(name="one", inputs={"x": (1.0,)})


@contextlib.contextmanager
def serving(answer: Any) -> Iterator[int]:
    """A server that has a metrics page, a model's metadata and one answer."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.reply(200, PAGE if self.path == "/metrics" else json.dumps(METADATA))

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.reply(*answer)

        def reply(self, status: int, text: str) -> None:
            self.send_response(status)
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def state(*ports: int) -> DeploymentState:
    """A deployment whose first revision serves, and whose others are kept."""
    found = new()
    for number, port in enumerate(ports, 1):
        model = Pinned(address=f"volume://f/model@{number}", digest=f"b3:{number:064}")
        spec = DeploymentSpec(name="f", model=model, image="serve", image_digest=f"b3:{1:064}")
        found = prepared(found, spec, by="task")[0].up(f"r{number}", port=port)
        found = shifted(found, {"r1": 100})
    return found


def here() -> LocalPlatform:
    """A platform that needs neither its home nor a store."""
    nothing: Any = None
    return LocalPlatform(Settings(home=Path("/nowhere"), cache=Path("/nowhere")), nothing)


def counts(state: DeploymentState) -> Mapping[str, Counts]:
    return here().counts(read(state))


def ask(state: DeploymentState) -> tuple[Answer, ...]:
    """Ask the first revision."""
    book = read(state)
    return here().ask(book, book.live[-1], ASKED)


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The port of a server that accepts and never answers."""
    monkeypatch.setattr(platform, "LOOK_SECONDS", 0.5)
    monkeypatch.setattr(platform, "ASK_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_what_has_no_traffic_and_does_not_answer_is_left_out(silent: int) -> None:
    with serving(None) as port:
        counted = counts(state(port, silent))
    assert {name: each.requests for name, each in counted.items()} == {"r1": 3}


def test_what_has_traffic_and_does_not_answer_is_not_taken_for_one_that_was_not_asked(silent: int) -> None:
    with serving(None) as port:
        assert counts(state(silent, port)).keys() == {"r2"}
        assert counts(state(port, port).down(["r1"], reason="it is being loaded")).keys() == {
            "r1",
            "r2",
        }


@pytest.mark.parametrize(
    ("answer", "outputs", "error"),
    [
        ((200, '{"outputs": [{"name": "y", "data": [2.0]}]}'), {"y": (2.0,)}, ""),
        ((500, '{"error": "no luck"}'), None, "HTTP 500: no luck"),
        ((500, "<html>"), None, "HTTP 500: <html>"),
        ((200, "<html>"), None, "HTTP 200: <html>"),
        ((200, "{}"), None, "it answers {}, expected outputs"),
    ],
)
def test_an_answer_is_told_as_it_is(answer: Any, outputs: Any, error: str) -> None:
    with serving(answer) as port:
        (found,) = ask(state(port))
    assert (found.outputs, found.replica) == (outputs, f"127.0.0.1:{port}")
    assert found.error.endswith(error)
    assert bool(found.error) == bool(error)


def test_what_is_not_there_to_be_asked_says_why(silent: int) -> None:
    (found,) = ask(state(silent))
    assert "no answer (TimeoutError: timed out)" in found.error
    down = replace(state(silent).down(["r1"], reason="it is being loaded"))
    (found,) = ask(down)
    assert found.error == "it is not loaded: it is being loaded"
