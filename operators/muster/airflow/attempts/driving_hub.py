"""Drives every release of a triggerer, and every search: one backend and a few threads for each kind, however many there are.

The backend is open for as long as anything is driven; where a look fails for good another is opened for
those that come after, since a token may have been renewed.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar
from weakref import WeakKeyDictionary

from muster.backends.base import Backend

T = TypeVar("T")

LOOK_SECONDS = 0.25
# However many there are, all looks together leave the triggerer's process this many times what they take.
IDLE_SHARE = 3.0
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


_hubs: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, DrivingHub]] = WeakKeyDictionary()


def driving_hub(what: str) -> DrivingHub:
    """Return what the running event loop, of which a triggerer has one, drives releases by, or searches."""
    from muster.airflow.site import open_backend

    hubs = _hubs.setdefault(asyncio.get_running_loop(), {})
    if what not in hubs:
        hubs[what] = DrivingHub(open_backend, what)
    return hubs[what]
