"""Requests whose body never comes, as those of a node that is lost in the middle of one: no other client waits."""

import socket
from contextlib import suppress

import httpx
import pytest
from tests.unit.volumes.service.gang import Gang, make_spec
from tests.unit.volumes.service.inside import Inside
from tests.unit.volumes.service.process import until
from tests.waiting import GUARD_SECONDS

from muster.volumes.service import calls

MANY = 70


@pytest.fixture
def silent(gang):
    """Begin many requests in the name of a gang's pods, and send nothing more."""
    opened = []

    def begin(service, what="lines", method="POST", count=MANY, length=999):
        for _ in range(count):
            connection = socket.create_connection(("127.0.0.1", service.port))
            connection.sendall(
                f"{method} {gang.path()}/{what} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n"
                f"authorization: {gang.pods.headers['authorization']}\r\n\r\n".encode()
            )
            opened.append(connection)
        return opened

    yield begin
    for connection in opened:
        connection.close()


@pytest.mark.parametrize(("method", "what"), [("POST", "lines?offset=0"), ("PUT", "seal")])
def test_nobody_else_waits(service, gang, store, silent, method, what):
    silent(service, what, method)
    with httpx.Client(base_url=service.url, trust_env=False, timeout=GUARD_SECONDS) as client:
        for _ in range(5):
            assert client.get("/healthz").text == "ok\n"
            assert store.ledger.status(gang.job_id).job_id == gang.job_id
    assert gang.bundle().is_success


class TestInside:
    @pytest.fixture
    def service(self, tmp_path):
        with Inside(tmp_path) as service:
            yield service

    def test_it_is_given_up(self, service, gang, silent, monkeypatch):
        monkeypatch.setattr(calls, "SILENCE_SECONDS", 0.5)
        waiting = silent(service, "lines?offset=0")
        assert gang.lines(b"one\n") == 4
        for connection in waiting:
            connection.settimeout(GUARD_SECONDS)
            assert connection.recv(99).startswith(b"HTTP/1.1 408")

    def test_a_message_that_comes_byte_by_byte_is_given_up_too(self, service, gang, silent, monkeypatch):
        monkeypatch.setattr(calls, "FIRST_SECONDS", 0.3)
        (waiting,) = silent(service, "lines?offset=0", count=1)
        waiting.settimeout(0.01)

        def drip():
            waiting.sendall(b"x")
            with suppress(TimeoutError):
                return waiting.recv(99)

        assert until(drip, bool).startswith(b"HTTP/1.1 408")

    @pytest.mark.parametrize(("method", "what"), [("POST", "lines?offset=0"), ("PUT", "seal")])
    @pytest.mark.parametrize("size", [999, calls.SMALL_BYTES + 999])
    def test_no_pod_of_another_job_waits(self, service, gang, silent, method, what, size):
        """As long as they come, bodies of one job's pods take a quarter of the turns at most."""
        for connection in silent(service, what, method, count=24, length=size):
            connection.sendall(b" " * (size - 999))
        with Gang(service, "other", make_spec(outputs={"out": "flights/other"})) as other:
            other.pods.timeout = 5
            assert other.bundle().is_success
            assert other.lines(b"one\n") == 4
            assert other.seal(other.sealing({})).is_success
