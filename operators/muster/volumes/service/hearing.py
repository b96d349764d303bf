"""What user code told of itself in the lines that came in: how far a job is, and where else to look.

It is kept in memory alone, and is a few lines old at most; each status is given out with it.
"""

from __future__ import annotations

import threading
from dataclasses import replace

from muster.core.progress import Told, heard
from muster.core.status import JobStatus

MOST_JOBS = 4096


class Hearing:
    """The newest that each of the last jobs told."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._told: dict[str, Told] = {}

    def hear(self, job_id: str, lines: bytes) -> None:
        """Listen to lines of a job."""
        told = heard(lines)
        if told == Told():
            return
        with self._lock:
            self._told[job_id] = self._told.pop(job_id, Told()).then(told)
            while len(self._told) > MOST_JOBS:
                self._told.pop(next(iter(self._told)))

    def with_news(self, status: JobStatus) -> JobStatus:
        """A status that knows what its job told."""
        told = self._told.get(status.job_id)
        if told is None:
            return status
        before = Told(progress=status.progress, links=status.links)
        now = before.then(told)
        return replace(status, progress=now.progress, links=now.links)
