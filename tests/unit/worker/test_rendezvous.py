"""Where Horovod's ranks meet: found by the name of rank 0's replica, whenever that becomes known."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import replace

import pytest

from muster.core.job import Role
from muster.worker import rendezvous

HOST = "train-main-0-0.train"


@pytest.fixture
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def second(bench, port: int):
    roles = (Role(entrypoint="t:f", replicas=2, ranks=2),)
    return replace(bench.replica(roles=roles, index=1, launcher="horovod", port=port), master_address=HOST)


def test_a_name_is_looked_up_again_until_somebody_answers_there(bench, port, monkeypatch) -> None:
    found = iter([socket.gaierror("not known yet"), "127.0.0.2", "127.0.0.1"])  # the second pod is gone

    def look_up(host: str) -> str:
        assert host == HOST
        address = next(found)
        if isinstance(address, OSError):
            raise address
        return address

    monkeypatch.setattr(socket, "gethostbyname", look_up)
    environments = [{"HOROVOD_RANK": "2"}, {"HOROVOD_RANK": "3"}]
    assert rendezvous.meet(second(bench, port), environments) is None
    assert [each["HOROVOD_GLOO_RENDEZVOUS_ADDR"] for each in environments] == ["127.0.0.1"] * 2


def test_nobody_there(bench, monkeypatch) -> None:
    monkeypatch.setattr(rendezvous, "HOROVOD_TIMEOUT_SECONDS", 0)
    monkeypatch.setattr(rendezvous, "_RETRY_SECONDS", 0)
    with pytest.raises(OSError, match=rf"at {HOST}:1 after 0 s .*; see the log of its replica"):
        rendezvous.meet(second(bench, 1), [{}])
