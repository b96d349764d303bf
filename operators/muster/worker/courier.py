"""Sends a replica's lines to the store service, in a thread of its own: neither ranks nor worker wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from muster.worker.spool import LineSpool
from muster.worker.store import Stale, StoreService

SPACING_SECONDS = 0.5  # between two requests, unless enough lines wait to fill one
_BATCH_BYTES = 1 << 20
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS, _GROWTH = 0.1, 1.0, 2.0


class Courier:
    """Sends the lines in a spool to the service, each byte once, however often either of them fails.

    :param wake: called, in the thread, when it can send nothing more.
    """

    def __init__(self, service: StoreService, spool: LineSpool, *, wake: Callable[[], None]) -> None:
        self.stale = ""
        """Why the service no longer accepts this replica; empty while it does."""
        self.refused = ""
        """Why the service takes no lines; empty while it does."""
        self._service, self._spool, self._wake = service, spool, wake
        self._hurry = threading.Event()
        self._pause = _FIRST_PAUSE_SECONDS
        self._thread = threading.Thread(target=self._run, name="courier", daemon=True)

    def start(self) -> None:
        """Start the thread; the process must not fork after this."""
        self._thread.start()

    def finish(self, *, seconds: float) -> bool:
        """Send the remaining lines for at most `seconds`; return whether the service has all."""
        self._spool.close()
        self._hurry.set()
        self._thread.join(max(0.0, seconds))
        return not self._spool.waiting

    def _run(self) -> None:
        try:
            while self._bring():
                pass
        except Stale as error:
            self.stale = str(error)
        except Exception as error:  # no error in sending lines may end a replica
            self.refused = str(error) or type(error).__name__
        finally:
            self._spool.stall()
            self._wake()

    def _bring(self) -> bool:
        """Send the next lines; return whether there may be more."""
        offset, lines = self._spool.head(_BATCH_BYTES)
        if not lines:
            return False
        try:
            self._spool.drop(self._service.send(lines, offset=offset))
        except OSError:
            self._spool.stall()
            self._rest(self._pause)
            self._pause = min(_GROWTH * self._pause, _LONGEST_PAUSE_SECONDS)
        else:
            self._pause = _FIRST_PAUSE_SECONDS
            if self._spool.waiting < _BATCH_BYTES:
                self._hurry.wait(SPACING_SECONDS)
        return True

    def _rest(self, seconds: float) -> None:
        """Wait for a service that is away, for a shorter time in a hurry."""
        if self._hurry.is_set():
            threading.Event().wait(min(seconds, SPACING_SECONDS))
        else:
            self._hurry.wait(seconds)
