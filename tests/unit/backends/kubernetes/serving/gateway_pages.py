"""Pages of Traefik's as they are, and a real server that tells them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def line(service: str, number: float, *, code: str = "502", method: str = "POST") -> str:
    labels = f'code="{code}",method="{method}",protocol="http",service="{service}"'
    return f"traefik_service_requests_total{{{labels}}} {number}\n"


def page(*lines: str, born: float = 1.0) -> str:
    return "".join([f"process_start_time_seconds {born}\ntraefik_config_reloads_total 3\n", *lines])


@dataclass
class Told:
    """A Gateway that tells what it is told to. :param status: HTTP's."""

    text: str = ""
    status: int = 200
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    url: str = ""


@contextmanager
def telling(text: str) -> Iterator[Told]:
    told = Told(text=text)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            told.asked.append((self.path, self.headers["Host"]))
            data = told.text.encode()
            self.send_response(told.status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the base class's name
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        told.url = f"http://127.0.0.1:{server.server_port}/metrics"
        try:
            yield told
        finally:
            server.shutdown()
            thread.join()
