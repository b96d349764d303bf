"""Wakes requests that wait for news of a job, and hold no thread meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress


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
