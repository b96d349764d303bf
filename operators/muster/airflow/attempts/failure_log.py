"""Logs a failure that repeats: at once, then once a minute while it lasts, and when it is over."""

from __future__ import annotations

import time
from logging import Logger

from muster.core.errors import MusterError

EVERY_SECONDS = 60.0


class FailureLog:
    """Logs the failures of one repeated action.

    :param cannot: the message of a failure, with what is done about it; `again`: the message of the next success.
    """

    def __init__(self, log: Logger, *, cannot: str, again: str) -> None:
        self._log = log
        self._cannot = cannot
        self._again = again
        self._at: float | None = None

    def failed(self, error: Exception) -> None:
        """Log the failure, at most once a minute; a defect of muster's own with its traceback."""
        now = time.monotonic()
        if self._at is None or now - self._at >= EVERY_SECONDS:
            self._at = now
            outside = isinstance(error, (MusterError, OSError))
            self._log.warning("%s: %s", self._cannot, error, exc_info=not outside)

    def over(self) -> None:
        """Log that it works again, if it had failed."""
        if self._at is not None:
            self._log.info("%s", self._again)
            self._at = None
