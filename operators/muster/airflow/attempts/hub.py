"""Looks after every waiting job of a triggerer: one loop and one thread, however many there are.

It also lets jobs in that wait for room, and ends those that waited too long, since on one machine
that is done by whoever looks.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
import time
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from muster.backends.base import Backend
from muster.core.status import JobState, JobStatus

T = TypeVar("T")

log = logging.getLogger(__name__)

_TICK_SECONDS = 0.5
# How often a job is looked at that has been in one state for less than so long.
_STEPS_SECONDS = ((10.0, 0.5), (60.0, 1.0), (600.0, 2.0), (math.inf, 4.0))
_QUEUED_SECONDS = 2.0
# By then a triggerer that starts has its triggers. To ask Airflow how tasks stand keeps all of them
# waiting for a moment, at the first question for seconds: what is waited for need not be asked about.
_SWEEP_AFTER_SECONDS = 30.0
_SWEEP_EVERY_SECONDS = 60.0
_AT_ONCE_BYTES = 4 << 20


@dataclass(frozen=True, kw_only=True)
class News:
    """What was seen of a job at one look.

    :param status: None where nothing is known of the job.
    :param cursor: behind `lines`, which came since the look before.
    """

    status: JobStatus | None
    lines: tuple[str, ...]
    cursor: str

    @property
    def last(self) -> bool:
        """Whether a hub has nothing more to wait for: the job has ended, or its supervisor is gone."""
        return self.status is None or self.status.state.ended or not self.status.alive


@dataclass(eq=False)
class _Follower:
    """One trigger that waits for a job."""

    job_id: str
    offset: int
    since: float = field(default_factory=time.monotonic)
    due: float = 0.0
    state: object = None
    news: asyncio.Queue[News] = field(default_factory=asyncio.Queue)

    def note(self, found: News, now: float) -> None:
        """Hand it over, and choose when to look next: what has long been as it is is looked at less often."""
        state = found.status and found.status.state
        if state is not self.state:
            self.state, self.since = state, now
        self.offset = int(found.cursor)
        step = next(step for age, step in _STEPS_SECONDS if now - self.since < age)
        if state is JobState.QUEUED:  # who waits for room has nothing to say
            step = max(step, _QUEUED_SECONDS)
        self.due = (now // step + 1) * step  # so that those of one step are looked at together
        self.news.put_nowait(found)


class Hub:
    """Looks at the jobs of all triggers of one event loop, as long as there are any."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._followers: set[_Follower] = set()
        self._task: asyncio.Task[None] | None = None
        self._sweep_at = time.monotonic() + _SWEEP_AFTER_SECONDS
        # Its own: the loop's threads are few, and other triggers may hold them all.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="muster-hub")

    @property
    def backend(self) -> Backend:
        """Where the jobs run."""
        return self._backend

    async def follow(self, job_id: str, *, after: str | None = None) -> AsyncGenerator[News, None]:
        """Yield what each look at a job shows, until it has ended or its supervisor is gone.

        :param after: the cursor behind which lines are read.
        """
        follower = _Follower(job_id, int(after or 0))
        self._followers.add(follower)
        self._start()
        try:
            while True:
                found = await follower.news.get()
                yield found
                if found.last:
                    return
        finally:
            self._followers.discard(follower)

    def _start(self) -> None:
        """Begin to look, in no trigger's context: what the hub itself logs belongs to none of them."""
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(
                self._run(), name="muster-hub", context=contextvars.Context()
            )

    async def _run(self) -> None:
        while self._followers:
            now = time.monotonic()
            if now > self._sweep_at:
                self._sweep_at = now + _SWEEP_EVERY_SECONDS
                await self._in_thread(self._sweep, {each.job_id for each in self._followers})
            due = [each for each in self._followers if each.due <= now]
            if due:
                await self._look(due)
            await asyncio.sleep(_TICK_SECONDS)

    async def _look(self, due: Sequence[_Follower]) -> None:
        found = await self._in_thread(self._read, [(each.job_id, each.offset) for each in due])
        now = time.monotonic()
        for follower, news in zip(due, found or (), strict=found is not None):
            follower.note(news, now)

    async def _in_thread(self, work: Callable[..., T], *arguments: Any) -> T | None:
        """Return what `work` does; None where it fails, since every waiting task depends on this loop."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)
        except Exception:  # a disk that is full or away, a defect: it is tried again
            log.warning("muster's hub failed at something and goes on", exc_info=True)
            return None

    def _sweep(self, followed: Collection[str]) -> None:
        """End what could not be ended: the triggerer was down, or had not begun to wait for it."""
        from muster.airflow.attempts.orphans import sweep
        from muster.airflow.attempts.standing import ask
        from muster.airflow.site import instance
        from muster.core.settings import Settings

        for each in sweep(self._backend, instance(Settings.load()), ask, but=followed):
            log.info("job %s is ended: %s (%s)", each.job_id, each.reason, each.task)

    def _read(self, asked: Sequence[tuple[str, int]]) -> list[News]:
        statuses = self._backend.statuses({job_id for job_id, _ in asked})
        return [self._news(job_id, offset, statuses.get(job_id)) for job_id, offset in asked]

    def _news(self, job_id: str, offset: int, status: JobStatus | None) -> News:
        """Read the lines that came: after the status, so that all lines of an ended job are there."""
        if status is None:
            return News(status=None, lines=(), cursor=str(offset))
        data, offset = self._backend.store.ledger.read(job_id, after=offset, limit_bytes=_AT_ONCE_BYTES)
        return News(
            status=status, lines=tuple(data.decode("utf-8", "replace").splitlines()), cursor=str(offset)
        )


_hubs: WeakKeyDictionary[asyncio.AbstractEventLoop, Hub] = WeakKeyDictionary()


def hub() -> Hub:
    """Return the hub of the running event loop: a triggerer has one."""
    from muster.airflow.site import connect

    loop = asyncio.get_running_loop()
    if loop not in _hubs:
        _hubs[loop] = Hub(connect())
    return _hubs[loop]
