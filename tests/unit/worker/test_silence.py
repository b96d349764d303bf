"""When a gang that says nothing hangs, by clocks and files that the test sets."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from muster.worker import silence as module
from muster.worker.silence import Silence

BEGAN = 1_000_000.0


class Clock:
    """Stands for the module ``time``."""

    def __init__(self) -> None:
        self.now, self.awake = BEGAN, 50.0

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.awake

    def run(self, seconds: float) -> None:
        self.now, self.awake = self.now + seconds, self.awake + seconds

    def sleep(self, seconds: float) -> None:
        """The machine is suspended."""
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def sign(tmp_path: Path) -> Path:
    (tmp_path / "sealed").mkdir()
    os.utime(tmp_path / "sealed", (BEGAN, BEGAN))
    return tmp_path / "sealed"


@pytest.fixture
def silence(clock: Clock, sign: Path) -> Silence:
    return Silence(60.0, sign=str(sign))


def test_it_is_a_hang_after_so_long_and_not_before(silence: Silence, clock: Clock) -> None:
    clock.run(59)
    assert not silence.is_hang(clock.now)
    assert silence.left(clock.now) == 1
    clock.run(1)
    assert silence.is_hang(clock.now)


def test_a_line_begins_it_anew_and_leaves_a_sign_for_the_other_replicas(
    silence: Silence, clock: Clock, sign: Path
) -> None:
    other = Silence(60.0, sign=str(sign))
    os.utime(sign, (0, 0))
    clock.run(59)
    silence.broken()
    assert sign.stat().st_mtime > 0
    os.utime(sign, (clock.now, clock.now))  # the kernel dates it by its own clock
    clock.run(59)
    assert not silence.is_hang(clock.now)
    assert not other.is_hang(clock.now)
    clock.run(1)
    assert other.is_hang(clock.now)


def test_a_file_that_changes_is_progress(clock: Clock, sign: Path, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoints" / "epoch-3" / "weights"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.touch()
    for path in (checkpoint, checkpoint.parent, checkpoint.parent.parent):
        os.utime(path, (BEGAN, BEGAN))
    silence = Silence(60.0, sign=str(sign), watched=[str(tmp_path / "checkpoints"), str(tmp_path / "gone")])
    os.utime(checkpoint, (BEGAN + 30, BEGAN + 30))
    clock.run(80)
    assert not silence.is_hang(clock.now)
    clock.run(10)
    assert silence.is_hang(clock.now)


def test_a_machine_that_was_suspended_was_not_silent(silence: Silence, clock: Clock) -> None:
    clock.run(30)
    clock.sleep(8 * 3600)
    assert not silence.is_hang(clock.now)
    clock.run(29)
    assert not silence.is_hang(clock.now)
    clock.run(1)
    assert silence.is_hang(clock.now)


def test_a_line_after_the_suspension_counts_once(silence: Silence, clock: Clock, sign: Path) -> None:
    clock.sleep(3600)
    silence.broken()
    os.utime(sign, (clock.now, clock.now))
    clock.run(60)
    assert silence.is_hang(clock.now)


def test_without_a_time_it_never_is(clock: Clock, sign: Path) -> None:
    silence = Silence(0, sign=str(sign))
    clock.run(1e9)
    assert not silence.is_hang(clock.now)
    assert silence.left(clock.now) == math.inf


def test_one_that_was_found_is_one_whatever_the_finders_last_words_change(
    silence: Silence, clock: Clock, sign: Path
) -> None:
    other = Silence(60.0, sign=str(sign))
    clock.run(60)
    assert not other.is_found()
    silence.find()
    os.utime(sign, (clock.now, clock.now))
    assert other.is_found()
    assert other.is_hang(clock.now)
    other.find()
    assert silence.is_found()


def test_to_one_that_hears_its_own_ranks_it_is_none_yet(silence: Silence, clock: Clock, sign: Path) -> None:
    other = Silence(60.0, sign=str(sign))
    clock.run(59)
    other.broken()
    clock.run(1)
    silence.find()
    assert not other.is_hang(clock.now)
