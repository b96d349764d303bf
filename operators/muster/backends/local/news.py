"""What the ranks of a job told of their progress, written to its status no oftener than somebody looks."""

from __future__ import annotations

import time
from collections.abc import Callable

from muster.core.progress import Told, heard
from muster.core.status import JobStatus

EVERY_SECONDS = 2.0


class News:
    """The newest of what was told, and when it was last written down.

    :param told: what is in the status already.
    :param clock: seconds, from any start.
    """

    def __init__(self, status: JobStatus, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.told = self._written = Told(progress=status.progress, links=status.links)
        self._clock = clock
        self._next = clock()

    def hear(self, log: bytes) -> None:
        """Take in lines of the log."""
        self.told = self.told.then(heard(log))

    def due(self) -> bool:
        """Whether there is something new, and the last time was long enough ago; ask before each writing."""
        if self.told == self._written or self._clock() < self._next:
            return False
        self._written, self._next = self.told, self._clock() + EVERY_SECONDS
        return True
