"""Waits for a job inside the task's process: its lines go to the task's log as they come."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from muster.backends.base import Backend
from muster.core.errors import BackendError
from muster.core.status import JobStatus

Lines = Callable[[Sequence[str]], None]
Progress = Callable[[JobStatus], None]

PICK_UPS = 3
_NAP_SECONDS = 0.05


class Stopped(Exception):
    """The wait was ended from outside: Airflow told the task's process to stop."""


class Wait:
    """A wait that a signal handler can end, whenever it comes and wherever the wait stands.

    Airflow answers SIGTERM by calling ``on_kill`` and then goes on where it was, so that a task
    which did not notice would end as a success (apache/airflow#73006). Once :meth:`stop` was
    called every further wait raises.
    """

    def __init__(self) -> None:
        self._stopped = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def stopped(self) -> bool:
        """Whether :meth:`stop` was called."""
        return self._stopped

    def stop(self) -> None:
        """End the wait. Safe in a signal handler."""
        self._stopped = True
        if self._loop is not None and self._task is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)

    def check(self) -> None:
        """Raise if the wait was stopped."""
        if self._stopped:
            raise Stopped

    def pause(self, seconds: float) -> None:
        """Sleep. :raises Stopped: :meth:`stop` was called before or meanwhile."""
        self.check()
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            # Short naps: a lock to wait on could be held when the signal comes, and sleep goes on after one.
            time.sleep(min(left, _NAP_SECONDS))
            self.check()

    def follow(self, backend: Backend, job_id: str, *, lines: Lines, progress: Progress) -> JobStatus:
        """Pass on lines and changes of state until the job has ended, and return its last status.

        A job whose supervisor is gone is picked up again.

        :raises Stopped: :meth:`stop` was called; the job itself is left as it is.
        :raises BackendError: its supervisor was lost again and again.
        """
        cursor: str | None = None
        for _ in range(PICK_UPS):
            cursor = self._run(backend, job_id, cursor, lines, progress)
            status = backend.status(job_id)
            if status.state.ended:
                return status
            backend.submit(backend.store.ledger.spec(job_id), job_id=job_id, owner=status.owner)
        raise BackendError(
            f"job {job_id}: its supervisor was lost {PICK_UPS} times; see muster jobs show {job_id}"
        )

    def _run(
        self, backend: Backend, job_id: str, after: str | None, lines: Lines, progress: Progress
    ) -> str | None:
        cursor = after

        async def pump() -> None:
            nonlocal cursor
            async for event in backend.watch(job_id, after=cursor):
                if event.lines:
                    lines(event.lines)
                cursor = event.cursor
                if event.status is not None:
                    progress(event.status)
                    if not event.status.alive:
                        return

        async def run() -> None:
            self._loop, self._task = asyncio.get_running_loop(), asyncio.ensure_future(pump())
            if self._stopped:  # it came before there was a loop to wake
                self._task.cancel()
            await self._task

        self.check()
        try:
            asyncio.run(run())
        except asyncio.CancelledError:
            raise Stopped from None
        finally:
            self._loop = self._task = None
        self.check()
        return cursor
