"""A server that is late, one that hangs and one that is gone, as real sockets."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from tests.waiting import GUARD_SECONDS

from muster.backends.local.serving import server as room
from muster.backends.local.serving.server import Pulse


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(GUARD_SECONDS)
        yield server


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("muster.backends.local.serving.server.time.monotonic", lambda: now[0])
    return now


@pytest.fixture
def pulse(server: socket.socket, clock: list[float]) -> Iterator[Pulse]:
    pulse = Pulse(server.getsockname()[1])
    yield pulse
    pulse.close()


def answer(server: socket.socket, pulse: Pulse) -> None:
    connection, _ = server.accept()
    with connection:
        assert connection.recv(1000).startswith(b"GET /v2/health/ready HTTP/1.1\r\n")
        connection.sendall(b"HTTP/1.1 503 Service Unavailable\r\n\r\n")
    arrived = pulse._connection
    assert arrived is not None
    arrived.recv(1, socket.MSG_PEEK)


def test_who_answers_lives_and_is_asked_again_after_a_while(
    server: socket.socket, pulse: Pulse, clock: list[float]
) -> None:
    for _ in range(2 * room.MISSES):
        assert pulse.beats()
        answer(server, pulse)
        clock[0] += room.DEADLINE_SECONDS + 100  # it is we who come late
        assert pulse.beats()
        clock[0] += room.PERIOD_SECONDS


def test_who_misses_several_in_a_row_hangs(server: socket.socket, pulse: Pulse, clock: list[float]) -> None:
    assert pulse.beats()
    for _ in range(room.MISSES - 1):
        clock[0] += room.DEADLINE_SECONDS
        assert pulse.beats()
    clock[0] += room.DEADLINE_SECONDS
    assert not pulse.beats()


def test_who_takes_no_request_hangs(server: socket.socket, pulse: Pulse, clock: list[float]) -> None:
    server.close()
    for _ in range(room.MISSES - 1):
        assert pulse.beats()
        clock[0] += room.DEADLINE_SECONDS
    assert not pulse.beats()


def test_who_does_not_answer_at_once_is_quiet_until_it_does(
    server: socket.socket, pulse: Pulse, clock: list[float]
) -> None:
    assert pulse.beats()
    assert not pulse.quiet
    clock[0] += room.QUIET_SECONDS + 0.1
    assert pulse.beats()
    assert pulse.quiet
    clock[0] += room.DEADLINE_SECONDS
    assert pulse.beats()
    assert pulse.quiet  # although it was asked again just now
    server.accept()[0].close()  # the request that was given up
    answer(server, pulse)
    assert pulse.beats()
    assert not pulse.quiet


def test_a_late_answer_counts_from_anew(server: socket.socket, pulse: Pulse, clock: list[float]) -> None:
    assert pulse.beats()
    for _ in range(room.MISSES - 1):
        clock[0] += room.DEADLINE_SECONDS
        assert pulse.beats()
        server.accept()[0].close()  # those that were given up
    answer(server, pulse)
    assert pulse.beats()
    clock[0] += room.PERIOD_SECONDS
    for _ in range(room.MISSES):
        assert pulse.beats()
        clock[0] += room.DEADLINE_SECONDS


def test_before_a_deadline_nothing_is_missed(server: socket.socket, pulse: Pulse, clock: list[float]) -> None:
    for _ in range(100):
        assert pulse.beats()
        clock[0] += room.DEADLINE_SECONDS / 200
