"""Hears from the store service how the gang goes on, in threads of its own; a service of an earlier release tells nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable

from muster.core.going_on import Going, Gone, Outlook
from muster.core.patience import Patience
from muster.worker.store import Refused, Stale, StoreService

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 1.0


class Herald:
    """One replica's ear, and its last word.

    :param wake: called, in a thread, when there is something new.
    :param seconds: how long a service that is away is asked, once this replica is gone.
    """

    def __init__(self, service: StoreService, *, wake: Callable[[], None], seconds: float) -> None:
        self.over = False
        """Whether this attempt is over for the gang."""
        self.stale = ""
        """Why the service no longer accepts this replica; empty while it does."""
        self.answer: Outlook | None = None
        """How the gang goes on, once it is decided."""
        self.silent = False
        """Whether no answer will come."""
        self._service, self._wake, self._seconds = service, wake, seconds

    def start(self) -> None:
        """Begin to listen; the process must not fork after this."""
        threading.Thread(target=self._listen, name="herald", daemon=True).start()

    def say(self, gone: Gone) -> threading.Thread:
        """Say that no process of this replica is left; if its pod stays, wait for the answer. Return the thread."""
        thread = threading.Thread(target=self._say, args=(gone,), name="last-word", daemon=True)
        thread.start()
        return thread

    def _listen(self) -> None:
        self._tell(lambda: self._settled(Going.RUNS, seconds=float("inf")) is not None)

    def _say(self, gone: Gone) -> None:
        def ask() -> bool:
            outlook = self._persist(lambda: self._service.gone(gone), seconds=self._seconds)
            if outlook.going is Going.STOPS and gone.stays:
                outlook = self._settled(Going.STOPS, seconds=self._seconds)
            self.answer = outlook
            return True

        self._tell(ask)
        self.silent = self.answer is None
        self._wake()

    def _tell(self, ask: Callable[[], bool]) -> None:
        try:
            self.over = ask() or self.over
        except Stale as error:
            self.stale = str(error)
        except (Refused, OSError):
            return  # an earlier release, or away for long: the replica goes on as without us
        self._wake()

    def _settled(self, known: Going, *, seconds: float) -> Outlook:
        """Ask until the gang goes on in another way than the one that is known."""
        while True:
            outlook = self._persist(lambda: self._service.outlook(known), seconds=seconds)
            if outlook.going is not known:
                return outlook

    def _persist(self, ask: Callable[[], Outlook], *, seconds: float) -> Outlook:
        return Patience(seconds, first=_FIRST_PAUSE_SECONDS, longest=_LONGEST_PAUSE_SECONDS).persist(ask)
