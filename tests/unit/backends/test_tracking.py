"""Whether ``muster mlflow`` answers on this machine."""

from __future__ import annotations

import socket
import threading

import pytest

from muster.backends.tracking import answers


def test_mlflow_of_this_machine_is_asked_without_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"

        def serve() -> None:
            with listener.accept()[0] as asked:
                asked.recv(4096)
                asked.sendall(b"HTTP/1.0 200 OK\r\n\r\n")

        server = threading.Thread(target=serve, daemon=True)
        server.start()
        assert answers(url)
        server.join()
    assert not answers(url), "nothing listens any more"
