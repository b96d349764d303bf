"""Sends a replica's lines to the store service, in a thread of its own: neither ranks nor worker wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from muster.worker.spool import Spool
from muster.worker.store import Stale, StoreService

SPACING_SECONDS = 0.5  # between two requests, unless so much waits that one is full
_BATCH_BYTES = 1 << 20
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS, _GROWTH = 0.1, 1.0, 2.0


class Courier:
    """Brings what is in a spool to the service, each byte once, however often either of the two goes away.

    :param wake: is called, in the thread, when it can bring nothing more.
    """

    def __init__(self, service: StoreService, spool: Spool, *, wake: Callable[[], None]) -> None:
        self.stale = ""
        """Why this replica is not wanted any more; empty where it is."""
        self.refused = ""
        """Why no lines can be brought, if so."""
        self._service, self._spool, self._wake = service, spool, wake
        self._hurry = threading.Event()
        self._pause = _FIRST_PAUSE_SECONDS
        self._thread = threading.Thread(target=self._run, name="courier", daemon=True)

    def start(self) -> None:
        """Begin; the process has to have done all its forks by then."""
        self._thread.start()

    def finish(self, *, seconds: float) -> bool:
        """Bring what is left, for at most so long; return whether the service has all."""
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
        except Exception as error:  # a replica is worth more than its lines, whatever is wrong with those
            self.refused = str(error) or type(error).__name__
        finally:
            self._spool.stall()
            self._wake()

    def _bring(self) -> bool:
        """Bring the next lines; whether there may be more."""
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
        """Wait for a service that is away; who hurries asks it again sooner."""
        if self._hurry.is_set():
            threading.Event().wait(min(seconds, SPACING_SECONDS))
        else:
            self._hurry.wait(seconds)
