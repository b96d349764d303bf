"""The state shared by all requests: the store, the keys, the logs, the starts and the committer."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import anyio

from muster.core.status import JobStatus
from muster.volumes.folder import FolderStore
from muster.volumes.service.committer import Committer
from muster.volumes.service.hearing import Hearing
from muster.volumes.service.journal import Journals
from muster.volumes.service.regrouping import Regrouping
from muster.volumes.service.starts import GangStarts

AT_ONCE = 16
STARTING_AT_ONCE = 64
LINES_AT_ONCE = 16
SEALS_AT_ONCE = 4


@dataclass(frozen=True, kw_only=True)
class Served:
    """One store that is served.

    :param working: threads for commits, uploads and other work of minutes; `starting`: threads for new
        attempts, where the pods of a gang wait until the first of them is done; `lines` and `seals`: threads
        for requests of pods. So quick requests never wait behind any of these, and a slow pod delays only
        requests like its own.
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
    working: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(AT_ONCE))
    starting: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(STARTING_AT_ONCE))
    lines: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(LINES_AT_ONCE))
    seals: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(SEALS_AT_ONCE))
    reading_seal: threading.Lock = field(default_factory=threading.Lock)

    def with_news(self, status: JobStatus) -> JobStatus:
        """Return a status, with the newest progress and links if its job has not ended."""
        return status if status.state.ended else self.hearing.with_news(status)
