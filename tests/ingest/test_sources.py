"""Sources beside S3: a web server, and SFTP whose server is known by its key."""

from __future__ import annotations

import base64
import gzip
import http.server
import json
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from email.utils import formatdate
from pathlib import Path
from typing import Any, ClassVar

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


def test_a_folder_of_a_web_server_that_is_named_without_its_slash(
    ingest: Any, web: str, tmp_path: Path
) -> None:
    assert ingest("one", f"{web}/d")["files"] == 2
    assert contents(tmp_path / "one") == {name: f"d/{name}" for name in ("b.csv", "e/c.csv")}


class Quiet(http.server.BaseHTTPRequestHandler):
    """Answers HEAD and GET alike, and logs nothing."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self.wfile.write(self._answer())

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self) -> bytes:
        """Send status and headers, and return the body."""
        raise NotImplementedError


class Hasty(Quiet):
    """Serves a file that changes once more within the second of its last change, to as many bytes."""

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


class Listing(Quiet):
    """A web server's folder, whose page sorts itself by links; `failing` are paths that it cannot answer for now."""

    failing: ClassVar[list[str]] = []
    pages: ClassVar[dict[str, str]] = {}

    def _answer(self) -> bytes:
        known = self.pages.get(self.path.partition("?")[0])
        status = 404 if known is None else 200
        if self.path in self.failing:
            self.failing.remove(self.path)
            status = 500
        body = (known or "").encode() if status == 200 else b""
        self.send_response(status)
        self.send_header("Content-Type", "text/html" if self.path.endswith("/") else "text/csv")
        self.send_header("Last-Modified", formatdate(1_700_000_000, usegmt=True))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        return body


@pytest.fixture
def pages() -> Iterator[tuple[str, type[Listing]]]:
    """The address of such a server, and what it serves."""
    sorts = '<a href="?C=N;O=D">Name</a> <a href="#top">top</a> <a href="/">up</a>'
    Listing.pages = {
        "/": f'{sorts}<a href="a.csv">a</a> <a href="d/">d</a> <a href="dead.csv">x</a> <a href="dead/">y</a>',
        "/d/": f'{sorts}<a href="b.csv">b</a>',
        "/a.csv": "a",
        "/d/b.csv": "b",
    }
    Listing.failing = []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Listing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/", Listing
        server.shutdown()


def test_links_that_sort_a_page_or_lead_nowhere_are_no_files(
    ingest: Any, pages: tuple[str, type[Listing]], tmp_path: Path
) -> None:
    assert ingest("one", pages[0])["files"] == 2
    assert contents(tmp_path / "one") == {"a.csv": "a", "d/b.csv": "b"}
    assert ingest("two", pages[0], before="one")["fetched"] == 0


@pytest.mark.parametrize("path", ["/d/", "/d/b.csv"])
def test_a_web_server_that_cannot_answer_for_a_folder_or_file_is_asked_again(
    ingest: Any, pages: tuple[str, type[Listing]], path: str, tmp_path: Path
) -> None:
    ingest("one", pages[0])
    pages[1].failing = [path, path]
    told = ingest("two", pages[0], before="one")
    assert (told["files"], told["gone"]) == (2, 0)


def test_a_folder_that_cannot_be_listed_is_not_gone(
    ingest: Any, pages: tuple[str, type[Listing]], tmp_path: Path
) -> None:
    ingest("one", pages[0])
    pages[1].failing = ["/d/"] * 1000
    assert ingest("two", pages[0], before="one")["error"] == "SourceAway"


def test_a_file_that_is_never_as_it_is_listed_ends_the_ingest(
    ingest: Any, pages: tuple[str, type[Listing]], tmp_path: Path
) -> None:
    class Wrong(Listing):
        def do_HEAD(self) -> None:
            self.pages = {**self.pages, "/a.csv": "much more"}
            super().do_HEAD()

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Wrong) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        told = ingest("one", f"http://127.0.0.1:{server.server_port}/")
        server.shutdown()
    assert told["error"] == "IngestError"
    assert "'a.csv' is listed with 9 B, and could not be read as that in 3 tries" in told["message"]


def test_one_file_of_a_web_server(ingest: Any, web: str, tmp_path: Path) -> None:
    ingest("one", f"{web}/d/b.csv")
    assert contents(tmp_path / "one") == {"b.csv": "d/b.csv"}


def test_one_file_of_a_web_server_that_cannot_answer_for_it_is_asked_for_again(
    ingest: Any, pages: tuple[str, type[Listing]], tmp_path: Path
) -> None:
    ingest("one", f"{pages[0]}a.csv")
    pages[1].failing = ["/a.csv"] * 3
    told = ingest("two", f"{pages[0]}a.csv", before="one")
    assert (told.get("message"), told["files"], told["kept"]) == (None, 1, 1)


def test_a_folder_that_a_web_server_knows_with_its_slash_alone(
    ingest: Any, pages: tuple[str, type[Listing]], tmp_path: Path
) -> None:
    assert ingest("one", f"{pages[0]}d/")["files"] == 1
    assert contents(tmp_path / "one") == {"b.csv": "b"}


def test_a_server_without_tls_behind_https_ends_the_ingest(
    ingest: Any, pages: tuple[str, type[Listing]]
) -> None:
    for path in ("", "a.csv"):
        told = ingest("one", pages[0].replace("http:", "https:") + path, patience_seconds=60)
        assert told["error"] == "IngestError"
        assert "is asked by https, and the server speaks no TLS" in told["message"]


class Closed(Quiet):
    """Refuses each request: it has no credentials."""

    def _answer(self) -> bytes:
        self.send_response(401)
        self.send_header("Content-Length", "0")
        self.end_headers()
        return b""


def test_a_server_that_asks_for_credentials_where_no_connection_is_given(ingest: Any) -> None:
    with cloud(Closed) as where:
        told = ingest("one", f"{where}/")
        refused = ingest("one", f"{where}/", connection="web")
    assert "asks for credentials, and no connection is given (ClientResponseError: 401" in told["message"]
    assert "name an Airflow connection" in told["message"]
    assert "refuses connection 'web' (ClientResponseError: 401" in refused["message"]


class Google(Quiet):
    """Holds ``lake/events/big.csv`` compressed and says that it is large, in the protocol of Google's Cloud Storage."""

    stored = gzip.compress(b"decoded")
    ranges: ClassVar[list[str | None]] = []

    def _answer(self) -> bytes:
        path = self.path.partition("?")[0]
        told = {"name": "events/big.csv", "size": str(1 << 30), "etag": "tag", "contentEncoding": "gzip"}
        if path.startswith("/download/"):
            self.ranges.append(self.headers["Range"])
            return self._say(200, self.stored, {"Content-Encoding": "gzip"})
        if path == "/storage/v1/b/lake/o":
            return self._say(200, json.dumps({"items": [{**told, "bucket": "lake"}]}).encode())
        if path == "/storage/v1/b/lake/o/events%2Fbig.csv":
            return self._say(200, json.dumps(told).encode())
        return self._say(404, b"{}")

    def _say(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> bytes:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        return body


class Azure(Quiet):
    """Holds ``lake/events/big.csv`` compressed, in the protocol of Azure's Blob Storage: larger than its library reads at once."""

    stored = gzip.compress(random.Random(1).randbytes(33 << 20), 0)

    def _answer(self) -> bytes:
        path, _, query = self.path.partition("?")
        if "comp=list" in query:
            return self._say(200, self._list(), {"Content-Type": "application/xml"})
        if path != "/account/lake/events/big.csv":
            return self._say(404, b"", {"x-ms-error-code": "BlobNotFound"})
        told = {"Content-Encoding": "gzip", "x-ms-blob-type": "BlockBlob"}
        begin, _, end = (self.headers["x-ms-range"] or "bytes=0-").removeprefix("bytes=").partition("-")
        body = self.stored[int(begin) : int(end or len(self.stored)) + 1]
        where = f"bytes {begin}-{int(begin) + len(body) - 1}/{len(self.stored)}"
        return self._say(206, body, {**told, "Content-Range": where})

    def _list(self) -> bytes:
        told = f"<Content-Length>{len(self.stored)}</Content-Length><Content-Encoding>gzip</Content-Encoding>"
        blob = f"<Blob><Name>events/big.csv</Name><Properties><Etag>tag</Etag><BlobType>BlockBlob</BlobType>{told}</Properties></Blob>"
        return f'<EnumerationResults ContainerName="lake"><Blobs>{blob}</Blobs><NextMarker /></EnumerationResults>'.encode()

    def _say(self, status: int, body: bytes, headers: Mapping[str, str]) -> bytes:
        self.send_response(status)
        changed = formatdate(1_700_000_000, usegmt=True)
        more = {"Content-Length": str(len(body)), "ETag": "tag", "Last-Modified": changed}
        for name, value in {**more, **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        return body


@contextmanager
def cloud(answers: type[Quiet]) -> Iterator[str]:
    """Lend the address of a server that answers so."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_what_google_holds_compressed_is_read_whole_and_decoded(ingest: Any, tmp_path: Path) -> None:
    with cloud(Google) as where:
        told = ingest("one", "gs://lake/events/", extra={"endpoint_url": where, "anon": True})
    assert (told.get("message"), told.get("files")) == (None, 1)
    assert contents(tmp_path / "one") == {"big.csv": "decoded"}
    assert Google.ranges == [None]


def test_what_azure_holds_compressed_is_decoded_across_its_parts(ingest: Any, tmp_path: Path) -> None:
    with cloud(Azure) as where:
        key = base64.b64encode(b"key").decode()
        said = f"DefaultEndpointsProtocol=http;AccountName=account;AccountKey={key};BlobEndpoint={where}/account;"
        told = ingest("one", "abfs://lake/events/", extra={"connection_string": said})
    assert (told.get("message"), told.get("files")) == (None, 1)
    assert (tmp_path / "one" / "big.csv").read_bytes() == gzip.decompress(Azure.stored)


@contextmanager
def served(python: Path, folder: Path, sessions: int = 100) -> Iterator[tuple[int, str]]:
    """Run an SFTP server with at most `sessions` sessions at once; lend its port and its public key."""
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


def test_links_of_an_sftp_server_are_left_out(
    ingest: Any, sftp: tuple[int, str], folder: Path, tmp_path: Path
) -> None:
    (folder / "link.csv").symlink_to("a.csv")
    (folder / "current").symlink_to("d")
    port, key = sftp
    told = ingest("one", f"sftp://127.0.0.1:{port}/", fields=USER, extra={"host_key": key})
    assert told["files"] == 3
    assert contents(tmp_path / "one") == {name: name for name in ("a.csv", "d/b.csv", "d/e/c.csv")}


def test_a_connection_of_sftp_that_breaks_is_made_again(
    ingest: Any, sftp: tuple[int, str], folder: Path, tmp_path: Path
) -> None:
    (folder / "big.bin").write_bytes(b"x" * (1 << 20))
    port, key = sftp
    with cutting(port, times=3, after=200_000) as front:
        told = ingest(
            "one", f"sftp://127.0.0.1:{front}/", fields=USER, extra={"host_key": key}, patience_seconds=60
        )
    assert told["files"] == 4
    assert (tmp_path / "one" / "big.bin").stat().st_size == 1 << 20


@contextmanager
def cutting(port: int, *, times: int, after: int) -> Iterator[int]:
    """Forward connections to a port, and cut one once it has returned `after` bytes, `times` times in all."""
    left = [times]

    def carry(client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", port)) as server:
            threading.Thread(target=_pump, args=(client, server), daemon=True).start()
            carried = 0
            while data := server.recv(65536):
                carried += len(data)
                if left[0] and carried > after:
                    left[0] -= 1
                    return
                client.sendall(data)

    def accept() -> None:
        with suppress(OSError):  # the listener is closed at the end
            while True:
                threading.Thread(target=carry, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1]
        assert not left[0], "nothing was cut"


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):  # one of them was cut
        while data := source.recv(65536):
            sink.sendall(data)


def test_a_server_of_sftp_that_lets_one_session_in_is_read(
    ingest: Any, python: Path, folder: Path, tmp_path: Path
) -> None:
    with served(python, folder, sessions=1) as (port, key):
        told = ingest(
            "one", f"sftp://127.0.0.1:{port}/", fields=USER, extra={"host_key": key}, patience_seconds=60
        )
    assert told["files"] == 3
    assert contents(tmp_path / "one") == {name: name for name in ("a.csv", "d/b.csv", "d/e/c.csv")}


def test_an_sftp_server_that_is_another_one_is_refused(
    ingest: Any, sftp: tuple[int, str], python: Path
) -> None:
    port, key = sftp
    make = "import paramiko; key = paramiko.ECDSAKey.generate(); print(key.get_name(), key.get_base64())"
    other = subprocess.check_output([python, "-c", make], text=True).strip()
    source = f"sftp://127.0.0.1:{port}/"
    assert "host_key" in ingest("one", source, fields=USER)["message"]
    told = ingest("one", source, fields=USER, extra={"host_key": other}, connection="files")
    assert told["error"] == "IngestError"
    assert "BadHostKeyException" in told["message"]
    told = ingest("one", source, fields=USER, extra={"host_key": f"{key[:-10]}AAAAAAAAAA"})
    assert "host_key is no key that can be read" in told["message"]
    wrong = {**USER, "password": "wrong-word"}
    told = ingest("one", source, fields=wrong, extra={"host_key": key}, connection="files")
    assert told["error"] == "IngestError"
    assert "refuses connection 'files'" in told["message"]
