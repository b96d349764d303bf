"""Lines on their way: each once, in their order, and no more of them than there is room for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.waiting import GUARD_SECONDS

from muster.worker.spool import LineSpool


@pytest.fixture
def spool(tmp_path: Path) -> LineSpool:
    return LineSpool(str(tmp_path), most_bytes=100)


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
    monkeypatch.setattr("muster.worker.spool.COMPACT_BYTES", 64)
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
