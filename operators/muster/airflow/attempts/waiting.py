"""Waits for a job inside the task's process: its lines go to the task's log as they come."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from muster.core.errors import BackendError
from muster.core.status import JobState, JobStatus

if TYPE_CHECKING:  # a Dag file imports this room, and the backends' one is heavy
    from muster.backends.base import Backend

Lines = Callable[[Sequence[str], int], None]
Progress = Callable[[JobStatus], None]

PICK_UPS = 3
# Where a run is killed together with its job's supervisor, the kernel kills the run's tasks a moment later: none of
# them may start the job again in between.
_PICK_UP_SECONDS = 1.0
_NAP_SECONDS = 0.05
_BEAT_SECONDS = 1.0


class Stopped(Exception):
    """The wait was ended from outside: Airflow told the task's process to stop."""


class Overdue(Exception):
    """The wait came to the time at which the job has to have ended."""


class GoesOn(Exception):
    """The job takes longer than it is waited for here.

    :ivar offset: in its log, where its lines go on.
    """

    def __init__(self, offset: int) -> None:
        super().__init__()
        self.offset = offset


@dataclass(frozen=True, kw_only=True)
class InlinePatience:
    """How long a process waits for a job before a trigger does.

    A job that waits for room itself gets only a moment: how long that takes is unknown, while it
    costs nothing to try for one whose turn comes at once.

    :param deadline: seconds since the epoch at which the job has to have ended, or None.
    :param limit_seconds: how long the job may take from its own start, or None.
    :param seconds: None waits to the end.
    """

    seconds: float | None = None
    queued_seconds: float = 2.0
    deadline: float | None = None
    limit_seconds: float | None = None

    def left(self, *, waited: float, queued: bool, now: float, started: float | None = None) -> float | None:
        """Seconds that are left to wait; None is without end.

        :param started: when the job has started, in seconds since the epoch; one that is queued has not.
        """
        end = self._end(None if queued else started)
        ends = [] if end is None else [end - now]
        if self.seconds is not None:
            ends.append((min(self.queued_seconds, self.seconds) if queued else self.seconds) - waited)
        return max(min(ends), 0.0) if ends else None

    def overdue(self, now: float, *, started: float | None = None) -> bool:
        """Whether the time has come at which the job has to have ended."""
        end = self._end(started)
        return end is not None and now >= end

    def _end(self, started: float | None) -> float | None:
        ends = [self.deadline, job_ends(started, self.limit_seconds)]
        return min((each for each in ends if each is not None), default=None)


def job_ends(started: float | None, limit_seconds: float | None) -> float | None:
    """When a job comes to the limit that counts from its start; None where it has not started, or has no limit."""
    return None if started is None or limit_seconds is None else started + limit_seconds


def stop_airflows_clock() -> None:
    """Take ``execution_timeout`` from Airflow's hands, for the rest of this try.

    Airflow bounds a try by the interval timer of its process, which would count the time in muster's queue. From here
    on the limit is a job's, by ``Patience.limit_seconds``.
    """
    signal.setitimer(signal.ITIMER_REAL, 0)


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
            with suppress(RuntimeError):  # the loop was just closed: what comes next looks at the flag
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
            time.sleep(min(left, _NAP_SECONDS))  # the time that the caller asked for
            self.check()

    def follow(
        self,
        backend: Backend,
        job_id: str,
        *,
        lines: Lines,
        progress: Progress,
        after: int = 0,
        patience: InlinePatience | None = None,
    ) -> JobStatus:
        """Pass on lines and changes of state until the job has ended, and return its last status.

        A job whose supervisor is gone is picked up again. Whatever this raises, the job is left as it is.

        :param lines: is called with lines and the offset behind them, at least once a second, also with none.
        :param after: the offset in its log after which lines are passed on.
        :raises Stopped: :meth:`stop` was called.
        :raises GoesOn: the job goes on when `patience` has come to its end.
        :raises Overdue: the job goes on at the deadline of `patience`.
        :raises BackendError: its supervisor was lost again and again.
        """
        watch = _Watch(backend, job_id, lines, progress, after, patience or InlinePatience())
        for _ in range(PICK_UPS):
            self._run(watch)
            status = backend.status(job_id)
            if status.state.ended:
                return status
            self.pause(_PICK_UP_SECONDS)
            backend.submit(backend.store.ledger.spec(job_id), job_id=job_id, owner=status.owner)
        raise BackendError(
            f"job {job_id}: its supervisor was lost {PICK_UPS} times; see muster jobs show {job_id}"
        )

    def _run(self, watch: _Watch) -> None:
        async def run() -> None:
            self._loop, self._task = asyncio.get_running_loop(), asyncio.ensure_future(watch.run())
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


class _Watch:
    """One job that is watched, perhaps over several supervisors of it."""

    def __init__(
        self,
        backend: Backend,
        job_id: str,
        lines: Lines,
        progress: Progress,
        after: int,
        patience: InlinePatience,
    ) -> None:
        self._backend = backend
        self._job_id = job_id
        self._lines = lines
        self._progress = progress
        self._offset = after
        self._patience = patience
        self._began = time.monotonic()
        self._started: float | None = None

    async def run(self) -> None:
        """Return when the job has ended or its supervisor is gone."""
        beat = asyncio.ensure_future(self._beat())
        try:
            async with asyncio.timeout(None) as limit:  # set by the first look: what has ended is taken then
                await self._pump(limit)
        except TimeoutError:
            overdue = self._patience.overdue(time.time(), started=self._started)
            raise (Overdue() if overdue else GoesOn(self._offset)) from None
        finally:
            beat.cancel()

    async def _pump(self, limit: asyncio.Timeout) -> None:
        async for event in self._backend.watch(self._job_id, after=self._offset):
            self._offset = event.offset
            if event.lines:
                self._lines(event.lines, self._offset)
            if event.status is None:
                continue
            self._progress(event.status)
            if not event.status.alive:
                return
            queued = event.status.state is JobState.QUEUED
            self._started = None if queued else event.status.started
            left = self._left(queued=queued)
            if left is not None and not event.status.state.ended:
                limit.reschedule(asyncio.get_running_loop().time() + left)

    def _left(self, *, queued: bool) -> float | None:
        waited = time.monotonic() - self._began
        return self._patience.left(waited=waited, queued=queued, now=time.time(), started=self._started)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(_BEAT_SECONDS)
            self._lines((), self._offset)
