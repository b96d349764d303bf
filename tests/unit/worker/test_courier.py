"""Lines on their way: each once, in their order, and however sending them fails, it delays nothing: neither what adds lines nor a stop."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.waiting import GUARD_SECONDS

from muster.worker.courier import Courier, LineSpool
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


def drained(spool: LineSpool, *, held: int = 0) -> bytes:
    """All that is left after `held` bytes, as it is sent."""
    spool.close()
    sent = b""
    while lines := spool.head(1 << 20)[1]:
        sent += lines
        spool.drop(held + len(sent))
    return sent


def test_it_leaves_no_name_behind(spool: LineSpool, tmp_path: Path) -> None:
    spool.add(b"a\n")
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_held_comes_again(spool: LineSpool) -> None:
    spool.add(b"one\ntwo\n")
    assert spool.head(100) == spool.head(100) == (0, b"one\ntwo\n")
    spool.drop(4)
    spool.add(b"three\n")
    assert spool.head(100) == (4, b"two\nthree\n")


def test_only_whole_lines_go_together(spool: LineSpool) -> None:
    spool.add(b"one\ntwo\nthree\n")
    assert spool.head(9) == (0, b"one\ntwo\n")
    assert spool.head(2) == (0, b"on")  # one that is longer than that goes in parts


def test_room_comes_back(tmp_path: Path) -> None:
    spool = LineSpool(str(tmp_path), most_bytes=8)
    for number in range(100):
        spool.add(b"%07d\n" % number)
        assert spool.head(100) == (8 * number, b"%07d\n" % number)
        spool.drop(8 * number + 8)
    assert spool.waiting == 0


def test_a_reader_that_is_always_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster.worker.courier.COMPACT_BYTES", 64)
    spool, sent = LineSpool(str(tmp_path)), b""
    spool.add(b"start\n")
    for number in range(100):
        spool.add(b"line %d\n" % number)
        sent += spool.head(8)[1]
        spool.drop(len(sent))
    lines = (b"line %d\n" % number for number in range(100))
    assert sent + drained(spool, held=len(sent)) == b"start\n" + b"".join(lines)


def test_what_there_is_no_room_for_is_counted(spool: LineSpool) -> None:
    spool.add(b"a" * 97 + b"\n")
    spool.stall()
    for _ in range(3):
        spool.add(b"left out\n")
    spool.drop(98)
    spool.add(b"again\n")
    offset, lines = spool.head(1000)
    note, again = lines.splitlines()
    assert (offset, again) == (98, b"again")
    assert note.startswith(b"[muster] 27 bytes of lines are left out here")


@pytest.mark.parametrize("goes_on", [lambda spool: spool.drop(98), lambda spool: spool.stall()])
def test_who_adds_too_much_waits_for_a_service_that_takes_it(
    spool: LineSpool, goes_on: Callable[[LineSpool], None]
) -> None:
    spool.add(b"a" * 97 + b"\n")
    writer = threading.Thread(target=spool.add, args=(b"more\n",))
    writer.start()
    writer.join(0.05)
    assert writer.is_alive()
    goes_on(spool)
    writer.join(GUARD_SECONDS)
    assert not writer.is_alive()


def test_what_is_left_out_last_is_said_at_the_end(spool: LineSpool) -> None:
    spool.add(b"a" * 99 + b"\n")
    spool.stall()
    spool.add(b"left out\n")
    assert b"[muster] 9 bytes of lines are left out here" in drained(spool)


def test_a_full_disk(spool: LineSpool, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    spool.add(b"one\n")
    with monkeypatch.context() as here:
        here.setattr("os.pwrite", full)
        spool.add(b"two\n")
    spool.add(b"three\n")
    lines = drained(spool).splitlines()
    assert lines[0] == b"one"
    assert lines[1].startswith(b"[muster] 4 bytes of lines are left out here")
    assert lines[2] == b"three"


def test_who_waits_is_woken(spool: LineSpool) -> None:
    found: list[tuple[int, bytes]] = []
    reader = threading.Thread(target=lambda: found.append(spool.head(100)))
    reader.start()
    spool.add(b"late\n")
    reader.join(GUARD_SECONDS)
    assert found == [(0, b"late\n")]


def test_who_waits_is_woken_at_the_end(spool: LineSpool) -> None:
    reader = threading.Thread(target=spool.head, args=(100,))
    reader.start()
    spool.close()
    reader.join(GUARD_SECONDS)
    assert not reader.is_alive()
