"""A check of the store that takes long, asked for again and again: it is one, and delays no other request."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from tests.unit.volumes.service.inside import Inside
from tests.unit.volumes.service.process import until
from tests.waiting import GUARD_SECONDS

from muster.core.errors import StoreError
from muster.volumes import fsck

ASKED = 60  # more than a pool of threads holds
CHECK = fsck.check


@pytest.fixture
def service(tmp_path):
    with Inside(tmp_path) as service:
        yield service


@pytest.fixture
def checking(monkeypatch):
    """Let a check end when told so; what was begun of each kind."""
    go_on, begun = threading.Event(), []

    def check(*store, deep, protect, progress):
        begun.append(deep)
        progress("volume://v@1", 1, 2)
        assert go_on.wait(GUARD_SECONDS)
        return CHECK(*store, deep=deep, protect=protect, progress=progress)

    monkeypatch.setattr(fsck, "check", check)
    yield go_on, begun
    go_on.set()


def test_it_is_one_however_often_it_is_asked_for(service, checking):
    go_on, begun = checking
    lost = [socket.create_connection(("127.0.0.1", service.port)) for _ in range(ASKED)]
    for connection in lost:
        connection.sendall(
            f"POST /v1/fsck HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n"
            f"authorization: Bearer {service.token()}\r\n\r\n".encode()
        )
    until(lambda: begun, bool)
    with httpx.Client(base_url=service.url, trust_env=False, timeout=GUARD_SECONDS) as client:
        assert client.get("/healthz").text == "ok\n"
    store, told = service.client(), []
    assert store.volumes() == []
    with ThreadPoolExecutor(2) as threads:
        quick, deep = (
            threads.submit(store.check, deep=deep, progress=lambda *how_far: told.append(how_far))
            for deep in (False, True)
        )
        until(lambda: told, lambda told: len(told) == 2)
        go_on.set()
        assert quick.result() == deep.result()
    assert quick.result().clean
    assert sorted(begun) == [False, True]
    assert set(told) == {("volume://v@1", 1, 2)}
    for connection in lost:
        connection.close()
    assert store.check().clean
    assert begun.count(False) == 2


@pytest.mark.parametrize(("error", "said"), [(OSError(5, "no disk"), "no disk"), (KeyError(1), "KeyError")])
def test_what_ends_it_is_said(service, monkeypatch, error, said):
    def check(*_, **__):
        raise error

    monkeypatch.setattr(fsck, "check", check)
    with pytest.raises(StoreError, match=said):
        service.client().check()
