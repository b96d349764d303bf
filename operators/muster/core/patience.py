"""Asks again until a deadline, with pauses that grow. What may be asked again is each caller's to say."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Patience:
    """The time that something is asked again, and the pauses between.

    ::

        patience = Patience(60, first=0.1, longest=1)
        while not done():
            if not patience.wait():
                raise BackendError("it is not done after a minute")

    :param seconds: from now; what comes later is not waited for.
    :param first: seconds of the first pause; each one after it is twice as long.
    :param longest: seconds of the longest pause; as the first unless given.
    :param clock: seconds, from any start.
    """

    def __init__(
        self,
        seconds: float,
        *,
        first: float,
        longest: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.seconds = seconds
        self._pause, self._longest = first, first if longest is None else longest
        self._clock, self._sleep = clock, sleep
        self._began = clock()

    @property
    def waited(self) -> float:
        """Seconds since the beginning."""
        return self._clock() - self._began

    @property
    def spent(self) -> bool:
        """Whether the next pause would last longer than there is time."""
        return self.waited + self._pause > self.seconds

    def wait(self) -> bool:
        """Pause, a little less than announced, so that not all ask at once; False at once where time is up."""
        if self.spent:
            return False
        from random import uniform  # only what waits needs it: 2 ms of a worker's start

        self._sleep(self._pause * uniform(0.7, 1.0))  # noqa: S311 - spread, not secret
        self._pause = min(2 * self._pause, self._longest)
        return True

    def persist(self, ask: Callable[[], T]) -> T:
        """Ask until there is an answer. :raises OSError: there was none in that time."""
        while True:
            try:
                return ask()
            except OSError:
                if not self.wait():
                    raise
