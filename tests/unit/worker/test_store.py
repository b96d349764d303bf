"""What an answer of the store service means to a replica, and that no other server's is taken for one."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from tests.ports import free_port

from muster.core import keepalive
from muster.worker import store
from muster.worker.store import Refused, Stale, StoreService

Start = Callable[[int, bytes], StoreService]


@pytest.fixture
def answering(bench) -> Iterator[Start]:
    """A server that gives every request the same answer."""
    servers: list[HTTPServer] = []

    def start(status: int, body: bytes) -> StoreService:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                assert self.headers["Authorization"] == "Bearer t0ken"
                assert self.path.startswith("/x/v1/jobs/train-abc-1/attempts/1/replicas/main/0/")
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_PUT(self) -> None:
                self.do_POST()

            def log_message(self, *_: object) -> None:
                pass

        servers.append(HTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, args=(0.01,), daemon=True).start()
        url = f"http://127.0.0.1:{servers[-1].server_port}/x"
        return StoreService(url, token="t0ken", replica=bench.replica(entrypoint="t:f"))

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


SAID = b'{"error": "Conflict", "message": "attempt 1 is fenced"}'


def test_how_much_is_held(answering: Start) -> None:
    assert answering(200, b'{"count": 7}').send(b"lines\n", offset=1) == 7


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, Refused),
        (401, Refused),
        (422, Refused),
        (404, Stale),
        (409, Stale),
        (410, Stale),
        (408, OSError),
        (429, OSError),
        (500, OSError),
        (503, OSError),
        (302, OSError),
    ],
)
def test_what_each_status_means(status: int, kind: type[Exception], answering: Start) -> None:
    service = answering(status, SAID)
    with pytest.raises(kind, match=rf"attempt 1 is fenced \(HTTP {status}, Conflict\)"):
        service.send(b"lines\n", offset=0)
    with pytest.raises(kind, match=rf"attempt 1 is fenced \(HTTP {status}, Conflict\)"):
        service.seal("{}", "{}")


@pytest.mark.parametrize("status", [200, 401, 403, 404, 409])
def test_the_page_of_a_proxy_means_nothing(status: int, answering: Start) -> None:
    service = answering(status, b"<html>please log in</html>")
    with pytest.raises(OSError, match="please log in"):
        service.send(b"lines\n", offset=0)
    with pytest.raises(OSError, match="please log in"):
        service.seal("{}", "{}")


def test_a_connection_tells_that_nobody_is_there_any_more(
    answering: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose node went with its network sends nothing, not even a word that it is gone: the kernel has to ask."""
    seen: list[int] = []

    def keep_alive(connected: socket.socket, *, small: bool) -> None:
        keepalive.keep_alive(connected, small=small)
        options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
        seen.append(connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))
        seen.extend(connected.getsockopt(socket.IPPROTO_TCP, option) for option in options)

    monkeypatch.setattr(store, "keep_alive", keep_alive)
    assert answering(200, b'{"count": 7}').send(b"lines\n", offset=1) == 7
    answering(204, b"").seal("{}", "{" + 64 * 1024 * "x" + "}")
    on, idle, every, probes, unread_milliseconds = seen[:5]
    assert on == 1
    assert idle + every * probes <= 3
    assert unread_milliseconds <= 3000
    assert seen[-1] >= 60_000  # a long seal waits unread until the service has a thread for it


def test_a_service_that_is_not_there(bench) -> None:
    service = StoreService(
        f"http://127.0.0.1:{free_port()}", token="t", replica=bench.replica(entrypoint="t:f")
    )
    with pytest.raises(ConnectionRefusedError):
        service.send(b"lines\n", offset=0)
