"""Ctrl-C: the first ends the running jobs and then the run, the second exits at once."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

_NAP_SECONDS = 0.05
_STDERR = 2
_STOPPING = "stopping: the running jobs are ended; Ctrl-C again leaves at once and lets them run"


class Interruption:
    """Whether SIGINT or SIGTERM has asked the run to end."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._asked = False

    def __bool__(self) -> bool:
        return self._asked

    def set(self) -> None:
        """Ask the run to end."""
        self._asked = True

    def sleep(self, seconds: float) -> None:
        """Sleep, but only until the run is asked to end."""
        deadline = time.monotonic() + seconds
        while not self._asked and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, _NAP_SECONDS))  # a lock could be held when the signal comes

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Handle both signals in the block."""
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        signal.signal(signal.SIGTERM, self._terminate)
        signal.signal(signal.SIGINT, self._interrupt)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        if self._asked:
            with suppress(RuntimeError):  # as below
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(130)
        self._asked = True
        try:
            self._say(_STOPPING)
        except RuntimeError:
            # The signal came while a line was written, and a buffered stream refuses a second writer.
            os.write(_STDERR, f"{_STOPPING}\n".encode())

    def _terminate(self, _number: int, _frame: FrameType | None) -> None:
        self._asked = True
