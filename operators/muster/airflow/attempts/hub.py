"""Looks after everything that the triggers of a triggerer wait for: jobs in one hub; releases and searches, which are driven, in another.

The hub of jobs has one loop and one thread, however many there are, and a backend of its own for as long as it waits for anything: so a
cluster is followed with one watch a kind, and where a look fails it opens another, since a token may have been renewed. On one machine it
also lets jobs in that wait for room, and ends those that waited too long, since there each look does that.

What is driven has one backend and a few threads for each kind. The backend is open for as long as anything is driven; where a look fails
for good another is opened for those that come after.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from muster.airflow.attempts.log import FailureLog
from muster.backends.base import Backend
from muster.core.errors import Corrupt, NotFound
from muster.core.status import JobState, JobStatus
from muster.volumes.protocols import Ledger

T = TypeVar("T")

log = logging.getLogger(__name__)

TICK_SECONDS = 0.5
# How often a job is looked at that has been in one state for less than so long.
STEPS_SECONDS = ((10.0, 0.5), (60.0, 1.0), (600.0, 2.0), (math.inf, 4.0))
# One that waits for room may wait for days, and begins at any moment.
QUEUED_SECONDS = 1.0
FAILED_SECONDS = 5.0  # from a look that failed to the next
# However many there are, a hub leaves the triggerer's process this many times what its looks take of that.
IDLE_SHARE = 3.0
# So many are looked at together at most, and a job that waits for room counts as due so much later than one that runs: an
# end is not kept waiting by a long queue, and those in it have their turn all the same.
_PORTION, _HEAD_START_SECONDS = 250, 1.0
# Of the logs of all who are looked at together, where a triggerer has just started and all of them have a backlog.
_AT_ONCE_BYTES, _LEAST_BYTES = 16 << 20, 64 << 10


@dataclass(frozen=True, kw_only=True)
class JobNews:
    """What was seen of a job at one look.

    :param status: None where nothing is known of the job.
    :param offset: in the log, behind `lines`, which came since the look before.
    """

    status: JobStatus | None
    lines: tuple[str, ...]
    offset: int

    @property
    def last(self) -> bool:
        """Whether a hub has nothing more to wait for: the job has ended, or its supervisor is gone."""
        return self.status is None or self.status.state.ended or not self.status.alive


@dataclass(eq=False)
class Follower:
    """One trigger that waits for a job."""

    job_id: str
    offset: int
    since: float = field(default_factory=time.monotonic)
    due: float = 0.0
    state: JobState | None = None
    news: asyncio.Queue[JobNews] = field(default_factory=asyncio.Queue)

    @property
    def urgency(self) -> float:
        """The lower, the sooner its turn is among those that are due."""
        return self.due + (_HEAD_START_SECONDS if self.state is JobState.QUEUED else 0.0)

    def note(self, found: JobNews, now: float) -> None:
        """Hand it over, and choose when to look next: what has long been as it is is looked at less often."""
        state = None if found.status is None else found.status.state
        if state is not self.state:
            self.state, self.since = state, now
        self.offset = found.offset
        step = next(step for age, step in STEPS_SECONDS if now - self.since < age)
        if state is JobState.QUEUED:
            step = QUEUED_SECONDS
        self.due = (now // step + 1) * step  # so that those of one step are looked at together
        self.news.put_nowait(found)


@dataclass(frozen=True)
class _Question:
    """What is asked of a job at one look. :param silent: nothing is to be read while it still waits for room."""

    job_id: str
    offset: int
    silent: bool


def most_urgent(followers: Iterable[Follower], now: float) -> list[Follower]:
    """Whose turn it is: as many as are looked at together, the most urgent of them."""
    due = (each for each in followers if each.due <= now)
    return sorted(due, key=attrgetter("urgency"))[:_PORTION]


class Hub:
    """Looks at the jobs of all triggers of one event loop, as long as there are any.

    :param open_backend: opens the backend where they run; called in a thread, and again where it failed.
    """

    def __init__(self, open_backend: Callable[[], Backend]) -> None:
        self._open = open_backend
        self._backend: Backend | None = None  # of the thread below alone
        self._followers: set[Follower] = set()
        self._rests_until = 0.0
        self._task: asyncio.Task[None] | None = None
        self._failures = FailureLog(
            log,
            cannot=f"muster's jobs cannot be looked at now; the triggerer tries again every {FAILED_SECONDS:g} s",
            again="muster's jobs can be looked at again",
        )
        # Its own: the loop's threads are few, and other triggers may hold them all.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="muster-hub")

    async def follow(self, job_id: str, *, after: int = 0) -> AsyncGenerator[JobNews, None]:
        """Yield what each look at a job shows, until it has ended or its supervisor is gone.

        :param after: the offset in the log behind which lines are read.
        """
        follower = Follower(job_id, after)
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
        try:
            while self._followers:  # some may have come while the backend was closed
                await self._look_after_all()
                await self._in_thread(self._close)
        finally:
            self._thread.submit(self._close)  # where the loop ends before its triggers do

    async def _look_after_all(self) -> None:
        while self._followers:
            now = time.monotonic()
            if due := most_urgent(self._followers, now):
                await self._look(due)
            await asyncio.sleep(self._idle_seconds())

    def _idle_seconds(self) -> float:
        """Seconds until the next turn; a trigger that begins to follow meanwhile waits a tick at most, or the rest."""
        now = time.monotonic()
        first = min((each.due for each in self._followers), default=0.0)
        return max(min(first - now, TICK_SECONDS), self._rests_until - now, 0.0)

    async def _look(self, due: Sequence[Follower]) -> None:
        asked = [_Question(each.job_id, each.offset, each.state is JobState.QUEUED) for each in due]
        began = time.monotonic()
        answer = await self._in_thread(self._read, asked)
        now = time.monotonic()
        if answer is None:
            await self._in_thread(self._close)
            for follower in due:
                follower.due = now + FAILED_SECONDS
            return
        self._failures.over()
        found, worked = answer
        # A store that takes long over its answer is left alone for as long.
        self._rests_until = now + max(worked * IDLE_SHARE, now - began)
        for follower, news in zip(due, found, strict=True):
            follower.note(news, now)

    async def _in_thread(self, work: Callable[..., T], *arguments: Any) -> T | None:
        """Return what `work` does; None where it fails, since every waiting task depends on this loop."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)
        except Exception as error:  # a disk that is full or away, a defect: it is tried again
            self._failures.failed(error)
            return None

    def _opened(self) -> Backend:
        if self._backend is None:
            self._backend = self._open()
        return self._backend

    def _close(self) -> None:
        backend, self._backend = self._backend, None
        if backend is not None:
            backend.close()

    def _read(self, asked: Sequence[_Question]) -> tuple[list[JobNews], float]:
        """Return what is new of each, and the seconds of CPU that it took to find out."""
        began, backend = time.thread_time(), self._opened()
        statuses = backend.statuses({each.job_id for each in asked})
        most = max(_AT_ONCE_BYTES // len(asked), _LEAST_BYTES)
        found = [_news(backend.store.ledger, each, statuses.get(each.job_id), most) for each in asked]
        return found, time.thread_time() - began


def _news(ledger: Ledger, asked: _Question, status: JobStatus | None, most: int) -> JobNews:
    """Read the lines that came, at most so many bytes of them: after the status, so that all lines of an ended job are there."""
    if status is None or (asked.silent and status.state is JobState.QUEUED):
        return JobNews(status=status, lines=(), offset=asked.offset)
    try:
        data, offset = ledger.read(asked.job_id, after=asked.offset, limit_bytes=most)
    except (NotFound, Corrupt):  # gc took it a moment ago: its task looks for itself
        return JobNews(status=None, lines=(), offset=asked.offset)
    return JobNews(status=status, lines=tuple(data.decode("utf-8", "replace").splitlines()), offset=offset)


LOOK_SECONDS = 0.25
# Most of a look is waiting, and one that withdraws a revision waits for its Gateway for seconds: who is judged
# meanwhile must not wait for that. A thread is there only once it is needed.
_THREADS = 64


@dataclass(eq=False)
class _Opened:
    """A backend and how many use it."""

    backend: Backend
    users: int = 0


class DrivingHub:
    """What the releases of one event loop share, or its searches.

    :param open_backend: opens a backend; called in a thread.
    :param what: the name of its threads.
    """

    def __init__(self, open_backend: Callable[[], Backend], what: str) -> None:
        self._open = open_backend
        self._opened: _Opened | None = None
        self._opening = asyncio.Lock()
        self._members = 0
        self._took = 0.0
        # Its own: the loop's threads are few, and other triggers may hold them all.
        self._threads = ThreadPoolExecutor(max_workers=_THREADS, thread_name_prefix=f"muster-{what}")

    @asynccontextmanager
    async def joined(self) -> AsyncIterator[Backend]:
        """Lend the backend to one that is driven; :meth:`look` looks after it."""
        used = await self._use()
        self._members += 1
        try:
            yield used.backend
        except Exception:
            if used is self._opened:
                self._opened = None  # the next one opens one anew
            raise
        finally:
            self._members -= 1
            used.users -= 1
            if not used.users:
                self._opened = None if used is self._opened else self._opened
                await self._in_thread(used.backend.close)

    async def _use(self) -> _Opened:
        async with self._opening:
            if self._opened is None:
                self._opened = _Opened(await self._in_thread(self._open))
            self._opened.users += 1
            return self._opened

    async def look(self, step: Callable[[], T]) -> T:
        """Pause, and take one look."""
        await asyncio.sleep(self.pause)
        return await self._in_thread(self._timed, step)

    def _timed(self, step: Callable[[], T]) -> T:
        began = time.thread_time()
        try:
            return step()
        finally:
            self._took += (time.thread_time() - began - self._took) / 8

    @property
    def pause(self) -> float:
        """Seconds until one is looked at again: longer where many looks cost much."""
        return max(LOOK_SECONDS, self._members * self._took * IDLE_SHARE)

    async def _in_thread(self, function: Callable[..., T], *arguments: object) -> T:
        context = contextvars.copy_context()  # Airflow's log of this trigger
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: context.run(function, *arguments))


_hubs: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Any]] = WeakKeyDictionary()


def _hub(what: str, made: Callable[[Callable[[], Backend]], T]) -> T:
    """Return the one hub of a kind that the running event loop has, of which a triggerer has one; made at first."""
    from muster.airflow.site import open_backend

    hubs = _hubs.setdefault(asyncio.get_running_loop(), {})
    if what not in hubs:
        hubs[what] = made(open_backend)
    found: T = hubs[what]
    return found


def hub() -> Hub:
    """Return what looks after the jobs of this triggerer."""
    return _hub("jobs", Hub)


def driving_hub(what: str) -> DrivingHub:
    """Return what drives the releases of this triggerer, or its searches."""
    return _hub(what, lambda opens: DrivingHub(opens, what))
