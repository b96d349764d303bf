"""Tells a quiet gang from one that hangs."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice

from muster.core.replica import HANG_WORD

_SIGN_EVERY_SECONDS = 1.0
_MOST_PATHS = 10_000  # checked for changes


class Silence:
    """How long the gang has neither printed a line nor changed a file of its checkpoints or outputs.

    Each worker sees only its own ranks, and often one rank prints for all. So each worker touches the folder
    of seals, whose time all replicas of the attempt see. The worker that finds a hang leaves a file there
    before its ranks print their stacks, which would count as life. All replicas then show their stacks; a
    later one may be told to stop before it finds the hang itself.

    :param seconds: this long is a hang; 0 turns the check off.
    :param sign: the folder of seals.
    :param watched: folders in which a change counts as progress.
    """

    def __init__(self, seconds: float, *, sign: str, watched: Sequence[str] = ()) -> None:
        self.seconds = seconds
        self._sign = sign
        self._word = os.path.join(sign, HANG_WORD)
        self._watched = watched
        self._ahead = _ahead()
        self._heard = time.time()
        self._signed = 0.0

    def broken(self) -> None:
        """Note that a line came."""
        self._ahead, self._heard = _ahead(), time.time()
        if self.seconds and self._heard >= self._signed + min(_SIGN_EVERY_SECONDS, self.seconds / 10):
            self._signed = self._heard
            with suppress(OSError):  # the ranks report a full or missing disk themselves
                os.utime(self._sign)

    def left(self, now: float) -> float:
        """Seconds until :meth:`is_hang` may be true."""
        return self._heard + self.seconds - now if self.seconds else math.inf

    def is_hang(self, now: float) -> bool:
        """Whether this is a hang: long silence here and no sign of others since, or another found one."""
        self._pass_over_sleep()
        if not self.seconds or now < self._heard + self.seconds:
            return False
        if self.is_found():
            return True
        changed = max(map(_changed, islice(self._paths(), _MOST_PATHS)), default=0.0)
        self._heard = max(self._heard, changed)
        return now >= self._heard + self.seconds

    def find(self) -> None:
        """Tell the other replicas that this is a hang."""
        with suppress(OSError):  # another replica did, or the disk is full
            open(self._word, "x").close()

    def is_found(self) -> bool:
        """Whether a replica of this attempt has found a hang."""
        return os.path.lexists(self._word)

    def _pass_over_sleep(self) -> None:
        """Leave out the time of a suspend or a change of the clock: that was no silence."""
        ahead = _ahead()
        self._heard += ahead - self._ahead
        self._ahead = ahead

    def _paths(self) -> Iterator[str]:
        yield self._sign
        for root in self._watched:
            for folder, _, files in os.walk(root):
                yield folder
                yield from (os.path.join(folder, name) for name in files)


def _ahead() -> float:
    """How far the wall clock, which dates files, is ahead of the monotonic one, which stops in a suspend."""
    return time.time() - time.monotonic()


def _changed(path: str) -> float:
    try:
        return os.lstat(path).st_mtime
    except OSError:
        return 0.0  # it is gone by now
