"""The thread of an api-server that reads the deployments' counters while the page is not open."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from muster.core.errors import MusterError
from muster.ext.page.answering import Answering
from muster.ext.page.history import EVERY_SECONDS

if TYPE_CHECKING:
    from muster.airflow.page.opening import Opening

log = logging.getLogger(__name__)


class CounterSampling:
    """Reads every deployment's counters every 15 seconds, from the first request of the page on."""

    def __init__(self, opening: Opening, *, seconds: float = EVERY_SECONDS) -> None:
        self._opening = opening
        self._seconds = seconds
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._over = threading.Event()

    def begin(self) -> None:
        """Start the thread; idempotent."""
        if self._thread is not None:
            return
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._sample, name="muster-deployments", daemon=True)
                self._thread.start()

    def end(self) -> None:
        """Stop the thread, and wait for it."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _sample(self) -> None:
        while not self._over.wait(self._seconds):
            # What is away leaves a gap in the curves; the page itself says why.
            with suppress(MusterError, OSError), self._opening.lent() as site:
                site.part(Answering).remember()
