"""Progress of long work on stderr: on a terminal one line that changes, elsewhere a line now and then."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from muster.cli.screen import note, safe

_SOONEST_SECONDS = 60.0
# seconds so far, or a count that has not reached its total
_CLOCK = re.compile(r"\d+ s$|^(\d+)/(?!\1 )\d+ .*")


class Seldom:
    """Passes lines on to a log; a line that only continues a count passes once a minute.

    A line continues a count if it differs only in the seconds at its end, or begins with ``12/100``.

    :param write: takes one line.
    :param clock: returns seconds, from any start.
    """

    def __init__(self, write: Callable[[str], None], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._write = write
        self._clock = clock
        self._said: str | None = None
        self._at = 0.0

    def __call__(self, line: str) -> None:
        """Write the line if it is due."""
        what, now = _CLOCK.sub("", line), self._clock()
        if what == self._said and now - self._at < _SOONEST_SECONDS:
            return
        self._said, self._at = what, now
        self._write(line)


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows the current step; its line is cleared at the end."""
    if not sys.stderr.isatty():
        seldom = Seldom(note)
        yield lambda line: seldom(safe(line))
        return
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status("") as status:
        yield lambda line: status.update(Text(safe(line)))
