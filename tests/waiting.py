"""Waiting for what comes about by itself: it is asked for again and again, without sleeps of a guessed length."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# What only guards against waiting for ever: a machine that stands still for half a minute fails no test.
GUARD_SECONDS = 120.0
# Of asking, not guesses at how long anything takes: what takes long is asked for less often, since each question to a
# real server costs it some time, too.
_FIRST_PACE_SECONDS, _LONGEST_PACE_SECONDS, _GROWTH = 0.05, 0.8, 1.15


def until(condition: Callable[[], object], *, seconds: float = GUARD_SECONDS) -> bool:
    """Whether `condition` came to hold within `seconds`."""
    deadline, pace = time.monotonic() + seconds, _FIRST_PACE_SECONDS
    while not condition():
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(left, pace))
        pace = min(pace * _GROWTH, _LONGEST_PACE_SECONDS)
    return True


def eventually(condition: Callable[[], T], *, seconds: float = GUARD_SECONDS) -> T:
    """Return what `condition` says once it holds; fail where it does not in time."""
    found: list[T] = []

    def holds() -> T:
        found[:] = [condition()]
        return found[0]

    assert until(holds, seconds=seconds), f"not so after {seconds:g} s: {condition}"
    return found[0]
