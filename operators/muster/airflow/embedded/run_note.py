"""Notes in the store that a ``muster run`` goes on: its jobs alone do not tell that between two stages."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from muster.core.errors import MusterError
from muster.core.origin import Origin
from muster.volumes.protocols import Ledger
from muster.volumes.task_notes import EVERY_SECONDS

_AGAIN_SECONDS = (
    5 * EVERY_SECONDS
)  # after one that failed: the run does nothing else while it waits for the store


@contextmanager
def noted(ledger: Ledger, run: Origin, warn: Callable[[str], None]) -> Iterator[Callable[[], None]]:
    """Note that a run goes on until the context ends; yield what is to be called again and again meanwhile.

    :param warn: told once where the store takes no note.
    """
    due, failed = 0.0, False

    def note(*, going: bool = True) -> None:
        nonlocal due, failed
        if going and time.monotonic() < due:
            return
        try:
            ledger.note_run(run, going=going)
            due = time.monotonic() + EVERY_SECONDS
        except MusterError as error:
            if not failed:
                warn(f"`muster runs` and the page do not show that this run goes on: {error}")
            due, failed = time.monotonic() + _AGAIN_SECONDS, True

    note()
    try:
        yield note
    finally:
        note(going=False)
