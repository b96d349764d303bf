"""Tells a gang that works quietly from one that hangs."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice

_SIGN_EVERY_SECONDS = 1.0
_MOST_PATHS = 10_000  # of what is looked at for changes
_WORD = "hang"


class Silence:
    """How long the gang has neither said a line nor changed a file of its checkpoints or outputs.

    Each worker hears its own ranks alone, and often one rank talks for all. So it leaves a sign where
    the others see it: the time of the folder in which the replicas of an attempt seal. Who finds a hang
    leaves word of it there, before its ranks' last words can pass for life: all replicas are to show
    their stacks, and those that find it later may be told to stop before they do.

    :param seconds: so long is a hang; 0 never is.
    :param sign: that folder.
    :param watched: the folders in which a change is progress.
    """

    def __init__(self, seconds: float, *, sign: str, watched: Sequence[str] = ()) -> None:
        self.seconds = seconds
        self._sign = sign
        self._word = os.path.join(sign, _WORD)
        self._watched = watched
        self._ahead = _ahead()
        self._heard = time.time()
        self._signed = 0.0

    def broken(self) -> None:
        """Note that a line came."""
        self._ahead, self._heard = _ahead(), time.time()
        if self.seconds and self._heard >= self._signed + min(_SIGN_EVERY_SECONDS, self.seconds / 10):
            self._signed = self._heard
            with suppress(OSError):  # of a disk that is full or gone the ranks tell themselves
                os.utime(self._sign)

    def left(self, now: float) -> float:
        """Seconds until it is worth to ask :meth:`is_hang`."""
        return self._heard + self.seconds - now if self.seconds else math.inf

    def is_hang(self, now: float) -> bool:
        """Whether it lasts long enough here, and no other replica gave a sign since, or one found it to."""
        self._pass_over_sleep()
        if not self.seconds or now < self._heard + self.seconds:
            return False
        if self.is_found():
            return True
        changed = max(map(_changed, islice(self._paths(), _MOST_PATHS)), default=0.0)
        self._heard = max(self._heard, changed)
        return now >= self._heard + self.seconds

    def find(self) -> None:
        """Leave word that this is a hang."""
        with suppress(OSError):  # another did, or the disk is full
            open(self._word, "x").close()

    def is_found(self) -> bool:
        """Whether some replica of this attempt has left word of a hang."""
        return os.path.lexists(self._word)

    def _pass_over_sleep(self) -> None:
        """Leave out the time in which a machine was suspended, or that its clock was set by: that was no silence."""
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
    """How far the clock, by which files are dated, is ahead of the one that stands still with the machine."""
    return time.time() - time.monotonic()


def _changed(path: str) -> float:
    try:
        return os.lstat(path).st_mtime
    except OSError:
        return 0.0  # it went while we looked
