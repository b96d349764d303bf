"""The state shared by all requests: the store, the keys, the logs, the starts and the committer."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

import anyio

from muster.core.status import JobStatus
from muster.volumes.folder import FolderStore
from muster.volumes.service.committer import Committer
from muster.volumes.service.hearing import Hearing
from muster.volumes.service.journal import Journals
from muster.volumes.service.regrouping import Regrouping
from muster.volumes.service.starts import GangStarts


class Turns:
    """So many requests at a time, each with one of `threads`; the pods of one job have at most a quarter of them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._all, self.threads = anyio.Semaphore(most), anyio.CapacityLimiter(most)
        self._jobs = WeakValueDictionary[str, anyio.Semaphore]()

    @asynccontextmanager
    async def turn(self, job_id: str) -> AsyncIterator[None]:
        """Wait for a turn, and have it while the block runs. :param job_id: empty for an operator's request."""
        if not job_id:
            async with self._all:
                yield
            return
        own = self._jobs.setdefault(job_id, anyio.Semaphore(self._most // 4))
        async with own, self._all:
            yield


@dataclass(frozen=True, kw_only=True)
class Served:
    """One store that is served.

    :param working: for commits, uploads and other work of minutes; `starting`: for new attempts, where the pods of a gang
        wait until the first of them is done; `lines` and `seals`: for requests of pods. So quick requests never wait behind
        any of these, and no job's pods keep those of another waiting.
    :param keeps_requests: whether something commits the requests that model servers keep, so that they may.
    :param reading_seal: held while a seal is parsed, which takes many times its length of memory.
    """

    store: FolderStore
    keys: tuple[bytes, ...]
    journals: Journals
    hearing: Hearing
    committer: Committer
    starts: GangStarts
    regrouping: Regrouping
    keeps_requests: bool = False
    quick: Turns = field(default_factory=lambda: Turns(40))
    working: Turns = field(default_factory=lambda: Turns(16))
    starting: Turns = field(default_factory=lambda: Turns(64))
    lines: Turns = field(default_factory=lambda: Turns(16))
    seals: Turns = field(default_factory=lambda: Turns(4))
    reading_seal: threading.Lock = field(default_factory=threading.Lock)

    def with_news(self, status: JobStatus) -> JobStatus:
        """Return a status, with the newest progress and links if its job has not ended."""
        return status if status.state.ended else self.hearing.with_news(status)
