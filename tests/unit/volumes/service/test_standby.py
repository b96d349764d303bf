"""A second service: what it is asked the first one answers, and it serves itself once that one is gone."""

from __future__ import annotations

import fcntl
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.volumes.service.process import until
from tests.waiting import GUARD_SECONDS

from muster.volumes.service.standby import announce, stand_by, still_served

TERM = "0123456789abcdef"


class First:
    """A service that holds the lock, and answers each connection with what it was asked, turned round."""

    def __init__(self, path: Path) -> None:
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.lock = os.open(path, os.O_RDWR | os.O_CREAT)
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        self.asked: list[bytes] = []
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def end(self) -> None:
        if self.lock >= 0:
            self.listening.shutdown(socket.SHUT_RDWR)
            self.listening.close()
            self._thread.join()
            os.close(self.lock)
            self.lock = -1

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.listening.accept()
            except OSError:
                return
            with connection:
                while data := connection.recv(65536):
                    self.asked.append(data)
                    connection.sendall(data[::-1])


@pytest.fixture
def first(tmp_path: Path) -> Iterator[First]:
    made = First(tmp_path / "service.lock")
    announce(made.lock, f"127.0.0.1:{made.listening.getsockname()[1]}", TERM)
    yield made
    made.end()


@pytest.fixture
def second(tmp_path: Path, first: First) -> Iterator[tuple[int, threading.Event]]:
    """The port of one that stands by, and whether it has the lock."""
    lock = os.open(tmp_path / "service.lock", os.O_RDWR)
    listening = socket.create_server(("127.0.0.1", 0))
    has_it = threading.Event()

    def run() -> None:
        stand_by(lock, listening)
        has_it.set()

    thread = threading.Thread(target=run)
    thread.start()
    yield listening.getsockname()[1], has_it
    first.end()
    thread.join(GUARD_SECONDS)
    assert not thread.is_alive()
    listening.close()
    os.close(lock)


def ask(port: int, *words: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=GUARD_SECONDS) as connection:
        answers = b""
        for each in words:
            connection.sendall(each)
            answers += connection.recv(65536)
        return answers


def test_what_it_is_asked_the_first_one_answers(first: First, second: tuple[int, threading.Event]) -> None:
    port, has_it = second
    assert ask(port, b"abc", b"def") == b"cbafed"  # of one connection, as long as it lasts
    assert first.asked == [b"abc", b"def"]
    assert not has_it.is_set()


def test_that_it_is_alive_it_says_itself(first: First, second: tuple[int, threading.Event]) -> None:
    port, _ = second
    assert ask(port, b"GET /livez HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 200 OK")
    assert first.asked == []


def test_a_connection_ends_where_the_first_one_is_away(
    first: First, second: tuple[int, threading.Event]
) -> None:
    """So who asks does so again; nothing hangs."""
    port, _ = second
    announce(first.lock, "127.0.0.1:1", TERM)
    assert ask(port, b"abc") == b""
    announce(first.lock, "", "")  # of a release before, which says nothing
    assert ask(port, b"abc") == b""


def test_it_has_the_lock_once_the_first_one_is_gone(
    first: First, second: tuple[int, threading.Event]
) -> None:
    port, has_it = second
    with socket.create_connection(("127.0.0.1", port), timeout=GUARD_SECONDS) as connection:
        connection.sendall(b"abc")
        assert connection.recv(99) == b"cba"
        connection.close()
    first.end()
    assert until(has_it.is_set, bool)


def test_a_release_without_terms_reads_the_address(tmp_path: Path) -> None:
    """It reads 200 bytes, and takes what stands after the last colon as the port: so after a rollback it forwards, too."""
    with (tmp_path / "service.lock").open("w+b") as lock:
        announce(lock.fileno(), "10.0.0.9:8080", TERM)
        host, _, port = os.pread(lock.fileno(), 200, 0).decode().rpartition(":")
    assert (host, int(port)) == ("10.0.0.9", 8080)


@pytest.mark.parametrize("text", ["", "10.0.0.9:8080", "what is this", "a:b\nc\n"])
def test_a_lock_file_without_a_term_is_served_by_nobody(tmp_path: Path, text: str) -> None:
    (tmp_path / "service.lock").write_text(text)
    with (tmp_path / "service.lock").open("r+b") as lock:
        assert still_served(lock.fileno(), own="10.0.0.1:8080") is None
