"""A small HTTP server that answers as an API server would, one scripted answer a request.

Tests of the client ask it over HTTP. Those of what is asked take :meth:`ApiServer.near`, which costs half as much.
"""

from __future__ import annotations

import io
import json
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.client import RemoteDisconnected
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from urllib3 import BaseHTTPResponse, HTTPResponse, PoolManager, Timeout
from urllib3.exceptions import ProtocolError, ReadTimeoutError

from muster.backends.kubernetes.api.access import Access, access_of


@dataclass(frozen=True)
class Asked:
    """One request that came."""

    method: str
    path: str
    query: dict[str, str]
    body: Any
    headers: dict[str, str]


@dataclass(frozen=True)
class Answer:
    """What is sent back.

    :param lines: sent one by one, as of a watch; `cut` breaks the connection after them.
    :param hold: after the lines, the connection stays open and silent until this is set.
    """

    code: int = 200
    body: Any = None
    lines: tuple[Any, ...] = ()
    cut: bool = False
    hold: threading.Event | None = None


@dataclass
class ApiServer:
    """The server. Answers are taken in order; the last one is given again."""

    answers: list[Answer | Callable[[Asked], Answer]] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    host: str = ""
    authority: str | None = None

    def answer(self, asked: Asked) -> Answer:
        self.asked.append(asked)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return answer(asked) if callable(answer) else answer

    def api(self, renew: Callable[[object], None] | None = None) -> Access:
        """Return an access by the Kubernetes client. :param renew: renews its credentials."""
        from kubernetes.client import Configuration

        configuration = Configuration()
        configuration.host = self.host
        configuration.ssl_ca_cert = self.authority
        configuration.api_key["authorization"] = "Bearer secret-token"
        configuration.refresh_api_key_hook = renew
        return access_of(configuration)

    def near(self) -> Access:
        """Return an access by which a request is a call in this process; what is read as it comes is still HTTP's."""
        return replace(self.api(), pool=_Near(self))


class _Near(PoolManager):
    """Asks a server of this process without a socket."""

    def __init__(self, server: ApiServer) -> None:
        super().__init__(retries=False)
        self._server = server

    def request(  # type: ignore[override] # as the transport asks
        self,
        method: str,
        url: str,
        *,
        body: bytes | None,
        headers: Mapping[str, str],
        preload_content: bool,
        timeout: Timeout,
    ) -> BaseHTTPResponse:
        if not preload_content:
            return super().request(
                method, url, body=body, headers=headers, preload_content=False, timeout=timeout
            )
        answer = self._server.answer(_asked(method, url.removeprefix(self._server.host), body, headers))
        assert not answer.lines, "what is read as it comes is asked for as a stream"
        assert not answer.cut, "what is read as it comes is asked for as a stream"
        if answer.code == 0:
            raise ProtocolError("Connection aborted.", RemoteDisconnected("closed without an answer"))
        if answer.hold is not None and not answer.hold.wait(timeout.read_timeout):
            pool = self.connection_from_url(url)
            raise ReadTimeoutError(pool, url, f"Read timed out. (read timeout={timeout.read_timeout})")
        return HTTPResponse(
            io.BytesIO(_body(answer)), status=answer.code, headers={"Content-Type": "application/json"}
        )


def _asked(method: str, target: str, body: bytes | None, headers: Mapping[str, str]) -> Asked:
    parts = urlsplit(target)
    query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    titled = {name.title(): text for name, text in headers.items()}
    return Asked(method, parts.path, query, json.loads(body) if body else None, titled)


def _body(answer: Answer) -> bytes:
    return answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()


def _handler(scripted: ApiServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # head and body are two writes, and 40 ms apart with it

        def handle_one(self) -> None:
            data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self._send(scripted.answer(_asked(self.command, self.path, data, dict(self.headers))))

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_one  # noqa: N815 - http.server's names

        def _send(self, answer: Answer) -> None:
            if answer.code == 0:
                self.close_connection = True
                self.connection.close()
                return
            self.send_response(answer.code)
            if answer.lines or answer.hold or answer.cut:
                self._stream(answer)
                return
            data = _body(answer)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _stream(self, answer: Answer) -> None:
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for line in answer.lines:
                data = json.dumps(line).encode() + b"\n"
                self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
                self.wfile.flush()
            if answer.hold is not None:
                answer.hold.wait(30)
            if not answer.cut:
                self.wfile.write(b"0\r\n\r\n")
            self.close_connection = answer.cut

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    return Handler


@contextmanager
def api_server(
    *answers: Answer | Callable[[Asked], Answer], certificate: tuple[Path, Path] | None = None
) -> Iterator[ApiServer]:
    """Serve on a port of its own until the block ends. :param certificate: for TLS, with its key."""
    scripted = ApiServer(answers=list(answers))

    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(scripted))
    server.daemon_threads = True
    scheme = "http"
    if certificate is not None:
        scheme, context = "https", ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    scripted.host = f"{scheme}://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield scripted
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def status(code: int, reason: str, message: str, **details: Any) -> Answer:
    """A refusal, as the API server words it."""
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "details": details,
        "code": code,
    }
    return Answer(code, body)
