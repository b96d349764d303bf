"""What every request finds: the store, the keys, the logs, and what is begun and committed."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import anyio

from muster.core.status import JobStatus
from muster.volumes.folder import FolderStore
from muster.volumes.service.committer import Committer
from muster.volumes.service.hearing import Hearing
from muster.volumes.service.journal import Journals
from muster.volumes.service.starts import Starts

AT_ONCE = 16
STARTING_AT_ONCE = 64
LINES_AT_ONCE = 16
SEALS_AT_ONCE = 4


@dataclass(frozen=True, kw_only=True)
class Served:
    """One store that is served.

    :param working: the threads of commits, uploads and the like, which may take minutes; `starting`
        those of attempts that begin, where the pods of a gang wait for the first of them to be through;
        `lines` and `seals` those of what pods send. So quick requests are never behind any of them, and no
        pod, however slow, is in the way of more than its like.
    :param reading_seal: held while one of the seals is read, which takes many times its length of memory.
    """

    store: FolderStore
    keys: tuple[bytes, ...]
    journals: Journals
    hearing: Hearing
    committer: Committer
    starts: Starts
    working: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(AT_ONCE))
    starting: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(STARTING_AT_ONCE))
    lines: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(LINES_AT_ONCE))
    seals: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(SEALS_AT_ONCE))
    reading_seal: threading.Lock = field(default_factory=threading.Lock)

    def with_news(self, status: JobStatus) -> JobStatus:
        """A status, and where its job goes on, what that has told since."""
        return status if status.state.ended else self.hearing.with_news(status)
