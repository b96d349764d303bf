"""News of jobs: progress and links that user code printed, and requests that wait for news, which hold no thread meanwhile.

Progress and links are read from the lines that arrive. They are kept in memory only, a few lines old at most, and added to each status that is returned.
"""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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


class Bell:
    """Rung once; for the event loop in which it was made."""

    def __init__(self) -> None:
        self._loop, self._rung = asyncio.get_running_loop(), asyncio.Event()

    def ring(self) -> None:
        """Wake who waits; any thread may."""
        self._loop.call_soon_threadsafe(self._rung.set)

    async def heard(self, *, seconds: float) -> None:
        """Wait until it was rung, or for so long."""
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._rung.wait(), seconds)


class Bells:
    """The bells of all jobs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hung: dict[str, set[Bell]] = defaultdict(set)

    @contextmanager
    def hung(self, job_id: str) -> Iterator[Bell]:
        """Lend a bell that rings at the job's next news; hang it before looking at what there is."""
        bell = Bell()
        with self._lock:
            self._hung[job_id].add(bell)
        try:
            yield bell
        finally:
            with self._lock:
                self._hung[job_id].discard(bell)
                if not self._hung[job_id]:
                    del self._hung[job_id]

    def ring(self, job_id: str) -> None:
        """Tell all who wait that there is news of the job."""
        with self._lock:
            bells = list(self._hung.get(job_id, ()))
        for bell in bells:
            bell.ring()
