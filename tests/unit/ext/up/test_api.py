"""Asking an Airflow whose API server comes and goes: no answer is an OSError, whatever kind of none it is."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from muster.core.settings import Settings
from muster.ext.up.home import UpHome
from muster.ext.up.site import Api

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n"


@pytest.fixture
def api(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Api]:
    """Of a server that answers once with the given bytes and dies."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(request.param)

        server = threading.Thread(target=answer)
        server.start()
        settings = Settings(home=tmp_path, cache=tmp_path)
        yield Api(UpHome(settings=settings, dags=tmp_path, port=listener.getsockname()[1]))
        server.join()


@pytest.mark.parametrize(
    "api",
    [b"", b"nonsense\r\n\r\n", HEAD, HEAD + b'{"scheduler":', b"HTTP/1.1 200 OK\r\n\r\n<html>"],
    indirect=True,
)
def test_half_an_answer_is_none(api: Api) -> None:
    with pytest.raises(OSError):  # noqa: PT011 - every kind of it
        api.well(since=datetime.now(UTC))
