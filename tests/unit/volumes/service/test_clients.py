"""Connections that would stay: heads that do not end or are too long, answers that are not read, and too many of all."""

import socket
from contextlib import ExitStack, suppress

import httpx
import pytest
from tests.unit.volumes.service.inside import Inside
from tests.unit.volumes.service.process import until
from tests.waiting import GUARD_SECONDS

from muster.volumes.service import clients

HALF = b"GET /v1/volumes HTTP/1.1\r\nhost: x\r\n"
MOST = 16


@pytest.fixture
def service(tmp_path, monkeypatch):
    monkeypatch.setattr(clients, "CONNECTIONS", MOST)
    with Inside(tmp_path) as service:
        yield service


@pytest.fixture
def connect(service):
    with ExitStack() as opened:

        def connection(sent=b""):
            made = opened.enter_context(
                socket.create_connection(("127.0.0.1", service.port), timeout=GUARD_SECONDS)
            )
            made.sendall(sent)
            return made

        yield connection


def healthy(service):
    return httpx.get(f"{service.url}/healthz", trust_env=False, timeout=GUARD_SECONDS).text == "ok\n"


def test_half_heads_are_given_up_in_favour_of_others(service, connect):
    held = [connect(HALF) for _ in range(3 * MOST)]
    assert healthy(service)
    assert held[0].recv(99) == b""  # the first one waited longest
    held[-1].sendall(b"\r\n")
    assert held[-1].recv(99).startswith(b"HTTP/1.1 401")


@pytest.mark.parametrize("sent", [HALF, b""])
def test_a_head_has_limited_time(service, connect, monkeypatch, sent):
    """One that is overdue is closed at the next connection: a probe's, at the latest."""
    monkeypatch.setattr(clients, "HEAD_SECONDS", 0.5)
    waiting = connect(sent)
    waiting.settimeout(0.01)

    def ended():
        assert healthy(service)
        with suppress(TimeoutError, ConnectionResetError):
            return waiting.recv(99) == b""

    assert until(ended, bool)


@pytest.mark.parametrize(
    "start",
    [
        b"GET /",
        HALF + b"x: ",
        HALF + b"\r\n" + HALF,
        b"PUT /v1/code/x HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\nx: ",
    ],
    ids=["URL", "header", "second request", "trailer"],
)
def test_a_head_has_limited_length(service, connect, start):
    pouring = connect(start)

    def pour():
        for _ in range(999):
            pouring.sendall(b"a" * (1 << 20))
            assert healthy(service)

    with pytest.raises((ConnectionResetError, BrokenPipeError)):
        pour()


def test_a_body_that_nobody_wanted_is_no_head(service, connect):
    """A refused upload ends as it began, so that its client reads why, and asks on."""
    for length in (b"content-length: 3000000", b"transfer-encoding: chunked"):
        client = connect(b"PUT /v1/uploads/x HTTP/1.1\r\nhost: x\r\n" + length + b"\r\n\r\n")
        chunked = b"chunked" in length
        for _ in range(30):
            client.sendall(
                (b"186a0\r\n" if chunked else b"")
                + b"\r\n0\r\n\r\n" * 14285
                + b"abcde"
                + (b"\r\n" if chunked else b"")
            )
        client.sendall(
            (b"0\r\n\r\n" if chunked else b"")
            + b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
        )
        answers = b""
        while data := client.recv(9999):
            answers += data
        assert answers.startswith(b"HTTP/1.1 401")
        assert answers.endswith(b"ok\n")
