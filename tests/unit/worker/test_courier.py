"""However the sending of lines fails, it delays nothing: neither what adds lines nor a stop."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.waiting import GUARD_SECONDS

from muster.worker.courier import Courier
from muster.worker.spool import LineSpool
from muster.worker.store import Refused, Stale

FULL = b"x" * 99 + b"\n"


class Service:
    """Takes lines as it is told to."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.asked, self.go_on = error, threading.Event(), threading.Event()

    def send(self, lines: bytes, *, offset: int) -> int:
        self.asked.set()
        if self.error is not None:
            raise self.error
        assert self.go_on.wait(GUARD_SECONDS)
        return offset + len(lines)


@pytest.fixture
def spool(tmp_path: Path) -> LineSpool:
    return LineSpool(str(tmp_path), most_bytes=len(FULL))


@pytest.mark.parametrize(
    ("error", "stale", "refused"),
    [
        (Stale("over"), "over", ""),
        (Refused("no"), "", "no"),
        (ValueError("unforeseen"), "", "unforeseen"),
        (RecursionError(), "", "RecursionError"),
    ],
)
def test_what_ends_it_is_known_and_nobody_waits_for_room(
    spool: LineSpool, error: Exception, stale: str, refused: str
) -> None:
    woken = threading.Event()
    courier = Courier(Service(error), spool, wake=woken.set)  # type: ignore[arg-type]
    courier.start()
    spool.add(FULL)
    assert woken.wait(GUARD_SECONDS)
    spool.add(FULL)
    assert (courier.stale, courier.refused) == (stale, refused)
    assert not courier.finish(seconds=30)


@pytest.fixture
def told(spool: LineSpool) -> Iterator[list[int]]:
    """A handler as a pod's first process has it; the signals that came."""
    signals: list[int] = []

    def stop(number: int, _: object) -> None:
        signals.append(number)
        spool.hurry()

    before = signal.signal(signal.SIGUSR1, stop)
    yield signals
    signal.signal(signal.SIGUSR1, before)


def test_who_is_told_to_stop_waits_for_no_room(spool: LineSpool, told: list[int]) -> None:
    service = Service()
    courier = Courier(service, spool, wake=lambda: None)  # type: ignore[arg-type]
    courier.start()
    spool.add(FULL)
    assert service.asked.wait(GUARD_SECONDS)
    teller = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1))
    teller.start()
    spool.add(FULL)  # the service has taken nothing yet
    assert told == [signal.SIGUSR1]
    service.go_on.set()
    assert courier.finish(seconds=30)
