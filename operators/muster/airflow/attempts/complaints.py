"""Says what fails at each look: at once, once a minute while it lasts, and when it is over."""

from __future__ import annotations

import time
from logging import Logger

from muster.core.errors import MusterError

EVERY_SECONDS = 60.0


class Complaints:
    """One thing that is done again and again, and may fail.

    :param cannot: what is said where it fails, with what is done about that; `again` once it succeeds.
    """

    def __init__(self, log: Logger, *, cannot: str, again: str) -> None:
        self._log = log
        self._cannot = cannot
        self._again = again
        self._at: float | None = None

    def failed(self, error: Exception) -> None:
        """Say why, unless that was said a moment ago; a defect of muster's own with its traceback."""
        now = time.monotonic()
        if self._at is None or now - self._at >= EVERY_SECONDS:
            self._at = now
            outside = isinstance(error, (MusterError, OSError))
            self._log.warning("%s: %s", self._cannot, error, exc_info=not outside)

    def over(self) -> None:
        """Say that it works again, if it failed."""
        if self._at is not None:
            self._log.info("%s", self._again)
            self._at = None
