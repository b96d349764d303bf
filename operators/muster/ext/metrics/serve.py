"""Serves the metrics over HTTP: ``/metrics`` in Prometheus's text format, and ``/healthz``."""

from __future__ import annotations

from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import generate_latest

from muster.core.errors import SpecError
from muster.ext.metrics.collector import MusterCollector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_TIMEOUT_SECONDS = 15.0  # of a client that sends or takes nothing


def page(collector: MusterCollector) -> bytes:
    """Return one page of metrics. A comment names each part that could not be read, and the reason.

    (https://prometheus.io/docs/instrumenting/exposition_formats: a line that begins with # and is neither HELP nor TYPE is
    a comment.)
    """
    text = generate_latest(collector)
    troubles = collector.troubles().items()
    return (
        "".join(f"# muster: the {part.value} cannot be read: {why}\n" for part, why in troubles).encode()
        + text
    )


def listening(collector: MusterCollector, *, host: str, port: int) -> ThreadingHTTPServer:
    """Return a server that listens already; ``serve_forever`` answers.

    :raises SpecError: the port cannot be had.
    """

    class Handler(BaseHTTPRequestHandler):
        timeout = _TIMEOUT_SECONDS
        server_version, sys_version = "muster", ""

        def do_GET(self) -> None:
            where = self.path.partition("?")[0]
            if where == "/metrics":
                self._answer(HTTPStatus.OK, page(collector), CONTENT_TYPE)
            elif where == "/healthz":
                self._answer(HTTPStatus.OK, b"ok\n")
            else:
                self._answer(HTTPStatus.NOT_FOUND, b"metrics are at /metrics\n")

        def log_message(self, *_: object) -> None:
            """Log no request: there is one every few seconds."""

        def _answer(self, status: HTTPStatus, body: bytes, kind: str = "text/plain; charset=utf-8") -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    try:
        server = ThreadingHTTPServer((host, port), Handler)
    except OSError as error:
        raise SpecError(
            f"metrics cannot be served on port {port} of {host} ({error.strerror}): end what listens there, or name "
            "another port"
        ) from error
    server.daemon_threads = True
    return server
