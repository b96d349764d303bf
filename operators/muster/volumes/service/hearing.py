"""Progress and links that user code printed, read from the lines that arrive.

They are kept in memory only, a few lines old at most, and added to each status that is returned.
"""

from __future__ import annotations

import threading
from dataclasses import replace

from muster.core.progress import Told, heard
from muster.core.status import JobStatus

MOST_JOBS = 4096


class Hearing:
    """The newest progress and links of the jobs that printed last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._told: dict[str, Told] = {}

    def hear(self, job_id: str, lines: bytes) -> None:
        """Read progress and links in lines of a job."""
        told = heard(lines)
        if told == Told():
            return
        with self._lock:
            self._told[job_id] = self._told.pop(job_id, Told()).then(told)
            while len(self._told) > MOST_JOBS:
                self._told.pop(next(iter(self._told)))

    def with_news(self, status: JobStatus) -> JobStatus:
        """Return a status with its job's progress and links."""
        told = self._told.get(status.job_id)
        if told is None:
            return status
        before = Told(progress=status.progress, links=status.links)
        now = before.then(told)
        return replace(status, progress=now.progress, links=now.links)
