"""Sources beside S3: a web server, and SFTP whose server is known by its key."""

from __future__ import annotations

import http.server
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from tests.ports import free_port
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.data]

USER = {"login": "muster-test", "password": "a-word-of-the-tests"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What the servers serve."""
    root = tmp_path / "served"
    for name in ("a.csv", "d/b.csv", "d/e/c.csv"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    return root


def contents(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".muster"))
    return {str(path.relative_to(folder)): path.read_text() for path in files}


@pytest.fixture
def web(folder: Path) -> Iterator[str]:
    """A web server that lists folders."""
    port = free_port()
    words = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1", "--directory", folder]
    with subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        assert until(lambda: _answers(port))
        yield f"http://127.0.0.1:{port}"
        process.kill()


def _answers(port: int) -> bool:
    import socket

    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def test_the_folders_of_a_web_server(ingest: Any, web: str, folder: Path, tmp_path: Path) -> None:
    assert ingest("one", f"{web}/")["files"] == 3
    assert contents(tmp_path / "one") == {name: name for name in ("a.csv", "d/b.csv", "d/e/c.csv")}
    (folder / "a.csv").write_text("other")
    told = ingest("two", f"{web}/", before="one")
    assert contents(tmp_path / "two")["a.csv"] == "other"
    assert told["files"] == 3


class Hasty(http.server.BaseHTTPRequestHandler):
    """Serves a file that changes once more within the second of its last change, to as many bytes."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self.wfile.write(self._answer())

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self) -> bytes:
        now = time.time()
        self.server.changed = getattr(self.server, "changed", int(now) + 1)  # type: ignore[attr-defined]
        changed = int(self.server.changed)  # type: ignore[attr-defined]
        body = b"last" if now >= changed + 1 else b"once"
        self.send_response(200)
        self.send_header("Last-Modified", formatdate(changed, usegmt=True))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        return body


def test_a_change_within_the_second_of_the_one_before_is_not_missed(ingest: Any, tmp_path: Path) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hasty) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        ingest("one", f"http://127.0.0.1:{server.server_port}/a.csv")
        server.shutdown()
    assert contents(tmp_path / "one") == {"a.csv": "last"}


def test_one_file_of_a_web_server(ingest: Any, web: str, tmp_path: Path) -> None:
    ingest("one", f"{web}/d/b.csv")
    assert contents(tmp_path / "one") == {"b.csv": "d/b.csv"}


@contextmanager
def served(python: Path, folder: Path, sessions: int = 100) -> Iterator[tuple[int, str]]:
    """Have an SFTP server that lets in so many at once; lend its port and its public key."""
    words = [python, Path(__file__).with_name("sftp_server.py"), folder, str(sessions)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        port, _, key = process.stdout.readline().strip().partition(" ")
        yield int(port), key
        process.kill()


@pytest.fixture
def sftp(python: Path, folder: Path) -> Iterator[tuple[int, str]]:
    """The port and the public key of an SFTP server."""
    with served(python, folder) as server:
        yield server


@pytest.fixture
def send(ingest: Any, tmp_path: Path) -> Callable[..., Any]:
    """Send a folder of many small files, all but one in one folder, to an SFTP server."""
    for number in range(24):
        file = tmp_path / "many" / "new" / f"{number:02}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(str(number))
    (tmp_path / "many" / "a").write_text("a")

    def send(server: tuple[int, str], **more: Any) -> Any:
        port, key = server
        given = {"fields": USER, "extra": {"host_key": key}, "program": "drive_copy.py", **more}
        return ingest("unused", f"sftp://127.0.0.1:{port}/copy", before="many", **given)

    return send


def test_a_folder_is_sent_to_sftp_whose_new_folders_are_made_once(
    send: Any, sftp: tuple[int, str], folder: Path, tmp_path: Path
) -> None:
    (folder / "copy").mkdir()
    told = send(sftp)
    assert (told.get("message"), told["files"], told["sent"]) == (None, 25, 25)
    assert contents(folder / "copy") == contents(tmp_path / "many")


def test_where_no_thread_is_let_in_a_copy_does_not_succeed(
    send: Any, python: Path, folder: Path, tmp_path: Path
) -> None:
    with served(python, folder, 1) as server:
        told = send(server, patience_seconds=0.3)
    assert told["error"] == "SourceAway"
    assert "does not answer" in told["message"]


def test_where_few_threads_are_let_in_they_send_all(
    send: Any, python: Path, folder: Path, tmp_path: Path
) -> None:
    with served(python, folder, 2) as server:
        told = send(server, patience_seconds=60)
    assert told["sent"] == 25
    assert contents(folder / "copy") == contents(tmp_path / "many")


def test_sftp_by_the_servers_key(ingest: Any, sftp: tuple[int, str], folder: Path, tmp_path: Path) -> None:
    port, key = sftp
    source = f"sftp://127.0.0.1:{port}/"
    assert ingest("one", source, fields=USER, extra={"host_key": key})["files"] == 3
    assert contents(tmp_path / "one") == {name: name for name in ("a.csv", "d/b.csv", "d/e/c.csv")}
    (folder / "d" / "b.csv").unlink()
    told = ingest("two", source, before="one", fields=USER, extra={"host_key": key})
    assert (told["fetched"], told["kept"], told["gone"]) == (0, 2, 1)


def test_an_sftp_server_that_is_another_one_is_refused(ingest: Any, sftp: tuple[int, str]) -> None:
    port, key = sftp
    other = f"{key[:-10]}AAAAAAAAAA"
    source = f"sftp://127.0.0.1:{port}/"
    assert "host_key" in ingest("one", source, fields=USER)["message"]
    assert ingest("one", source, fields=USER, extra={"host_key": other}).keys() == {"error", "message"}
    wrong = {**USER, "password": "wrong-word"}
    told = ingest("one", source, fields=wrong, extra={"host_key": key}, connection="files")
    assert told["error"] == "IngestError"
    assert "refuses connection 'files'" in told["message"]
