"""Notes in the store that a ``muster run`` goes on: its jobs alone do not tell that between two stages."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from muster.core.errors import MusterError
from muster.core.origin import Origin
from muster.volumes.protocols import Ledger
from muster.volumes.run_notes import EVERY_SECONDS


@contextmanager
def noted(ledger: Ledger, run: Origin, warn: Callable[[str], None]) -> Iterator[Callable[[], None]]:
    """Note that a run goes on until the context ends; yield what is to be called again and again meanwhile.

    :param warn: told once where the store takes no note.
    """
    due = 0.0

    def note(*, going: bool = True) -> None:
        nonlocal due
        if going and time.monotonic() < due:
            return
        try:
            due = time.monotonic() + EVERY_SECONDS
            ledger.note_run(run, going=going)
        except MusterError as error:
            due = math.inf
            warn(f"`muster runs` and the page do not show that this run goes on: {error}")

    note()
    try:
        yield note
    finally:
        note(going=False)
