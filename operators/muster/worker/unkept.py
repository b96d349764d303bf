"""Tells, while the ranks run, what they wrote into an output that no version keeps: the commit, hours later, refuses it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from muster.core.data import CHECKPOINTS
from muster.core.kept import look, refusal
from muster.core.replica import Replica

EVERY_SECONDS = 20.0
_SHARE = 100  # at most one part in this many of the time goes into it
_MOST_ENTRIES = 10_000


class Unkept:
    """What the outputs of this replica hold. Links to nothing are left to the seal: what they name may come.

    :param say: writes a line to the log.
    """

    def __init__(self, replica: Replica, *, say: Callable[[str], None]) -> None:
        self._say = say
        self._folders = {} if replica.works else dict(replica.staging)
        if CHECKPOINTS in replica.spec.outputs and replica.first_rank == 0:
            self._folders[CHECKPOINTS] = replica.checkpoints
        self._due = time.monotonic() + EVERY_SECONDS if self._folders else float("inf")

    def left(self) -> float:
        """Seconds until :meth:`look` is due."""
        return self._due - time.monotonic()

    def look(self, *, now: bool = False) -> None:
        """Report what no version keeps, once for each output, if it is due or `now`."""
        begun = time.monotonic()
        if not (now or begun >= self._due):
            return
        for output, folder in list(self._folders.items()):
            with suppress(OSError):  # a rank deletes or replaces what is looked at
                odd = sorted(each for each in look(folder, most=_MOST_ENTRIES) if not each.passing)
                if odd:
                    del self._folders[output]
                    said = refusal(f"output {output!r}", odd)
                    self._say(f"[muster] warning: {said}: as it is, nothing of this job is committed")
        took = time.monotonic() - begun
        self._due = time.monotonic() + max(EVERY_SECONDS, _SHARE * took) if self._folders else float("inf")
