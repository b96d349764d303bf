"""Where ranks meet: found by the name of rank 0's replica, whenever that becomes known."""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.waiting import eventually

from muster.core.job import Role
from muster.worker import rendezvous
from muster.worker.launchers import horovod
from muster.worker.launchers.launcher import launcher_of

HOST = "train-main-0-0.train"


@pytest.fixture
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def second(bench, port: int, *, launcher: str = "horovod", host: str = HOST):
    roles = (Role(entrypoint="t:f", replicas=2, ranks=2),)
    return replace(bench.replica(roles=roles, index=1, launcher=launcher, port=port), master_address=host)


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
    assert horovod.meet(second(bench, port), environments) == []
    assert [each["HOROVOD_GLOO_RENDEZVOUS_ADDR"] for each in environments] == ["127.0.0.1"] * 2


def test_nobody_there(bench, monkeypatch) -> None:
    monkeypatch.setattr(rendezvous, "TIMEOUT_SECONDS", 0)
    monkeypatch.setattr(rendezvous, "RETRY_SECONDS", 0)
    with pytest.raises(OSError, match=rf"at {HOST}:1 after 0 s .*; see the log of its replica"):
        horovod.meet(second(bench, 1), [{}])


@pytest.mark.parametrize(
    ("launcher", "host", "waits"),
    [
        ("torchrun", HOST, True),
        ("torchrun", "127.0.0.1", False),
        ("tensorflow", HOST, True),
        ("tensorflow", "127.0.0.1", False),
        ("plain", HOST, False),
    ],
)
def test_ranks_begin_when_the_name_of_rank_0_is_known(
    bench, monkeypatch, capfd, launcher: str, host: str, waits: bool
) -> None:
    answers = iter([socket.gaierror("not known yet"), socket.gaierror("not known yet"), []])
    asked: list[str] = []

    def look_up(name: str, port: None) -> list[object]:
        asked.append(name)
        answer = next(answers)
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(rendezvous, "RETRY_SECONDS", 0)
    replica = second(bench, 1, launcher=launcher, host=host)
    assert launcher_of(replica.spec.launcher).meet(replica, []) == []
    assert asked == ([HOST] * 3 if waits else [])
    assert capfd.readouterr().out == ""


def test_ranks_do_without_a_name_that_stays_unknown(monkeypatch, capfd) -> None:
    def look_up(name: str, port: None) -> None:
        raise socket.gaierror("Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(rendezvous, "NAME_SECONDS", 0)
    monkeypatch.setattr(rendezvous, "RETRY_SECONDS", 0)
    rendezvous.await_name(HOST)
    said = f"rank 0's name {HOST} is not known after 0 s, going on: Name or service not known\n"
    assert capfd.readouterr().out == said


def test_a_replica_that_waits_for_a_name_ends_when_it_is_told_to(bench) -> None:
    bench.code(t="import time\ndef f():\n    print('a rank began')\n    time.sleep(600)")
    waiting = second(bench, 1, launcher="torchrun", host="absent.invalid")
    process = bench.start(waiting)
    eventually(lambda: waits_alone(process, waiting.scratch) or process.poll() is not None)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    ended = bench.wait(process, waiting)
    assert (ended.code, ended.log, ended.report) == (-signal.SIGTERM, "", None)


def waits_alone(process: subprocess.Popen[str], scratch: str) -> bool:
    """Whether a worker that has its code sleeps, without a rank."""
    if not Path(scratch, "attempt-1", "code", "t.py").exists():
        return False
    task = Path(f"/proc/{process.pid}/task/{process.pid}")
    return "(sleeping)" in (task / "status").read_text() and not (task / "children").read_text()
