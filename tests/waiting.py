"""Waiting for what comes about by itself: it is asked for again and again, without sleeps of a guessed length.

Only the pauses between the questions count, never the time of the machine: what stands still for half a minute, or takes ten
times as long beside five other workers, has asked as often as on a quiet machine when its time is over. A test has no limit
of its own below :data:`GUARD_SECONDS` (``tests/unit/test_waiting.py``), unless a promise of muster's names one
(:func:`promptly`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# What only guards against waiting for ever: a machine that stands still for half a minute fails no test.
GUARD_SECONDS = 120.0
# Of asking, not guesses at how long anything takes: what takes long is asked for less often, since each question to a
# real server costs it some time, too.
_FIRST_PACE_SECONDS, _LONGEST_PACE_SECONDS, _GROWTH = 0.01, 0.8, 1.2


def until(condition: Callable[[], object], *, seconds: float = GUARD_SECONDS) -> bool:
    """Whether `condition` came to hold within `seconds` of pauses."""
    left, pace = seconds, _FIRST_PACE_SECONDS
    while not condition():
        if left <= 0:
            return False
        time.sleep(pause := min(left, pace))
        left, pace = left - pause, min(pace * _GROWTH, _LONGEST_PACE_SECONDS)
    return True


def eventually(condition: Callable[[], T], *, seconds: float = GUARD_SECONDS) -> T:
    """Return what `condition` says once it holds; fail where it does not in time."""
    found: list[T] = []

    def holds() -> T:
        found[:] = [condition()]
        return found[0]

    assert until(holds, seconds=seconds), f"not so after {seconds:g} s: {condition}"
    return found[0]


def promptly(condition: Callable[[], T], *, seconds: float) -> T:
    """Like :func:`eventually`, for what muster promises to take no longer than `seconds`."""
    return eventually(condition, seconds=seconds)
