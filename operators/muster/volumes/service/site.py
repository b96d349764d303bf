"""What every request finds: the store, the keys, the logs, and what is being committed."""

from __future__ import annotations

from dataclasses import dataclass, field

import anyio

from muster.volumes.folder import FolderStore
from muster.volumes.service.committer import Committer
from muster.volumes.service.journal import Journals
from muster.volumes.service.starts import Starts

SLOW_AT_ONCE = 16


@dataclass(frozen=True, kw_only=True)
class Site:
    """One store that is served.

    :param slow: how many commits, uploads and the like run at one time; quick requests have threads
        of their own.
    """

    store: FolderStore
    keys: tuple[bytes, ...]
    journals: Journals
    committer: Committer
    starts: Starts
    slow: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(SLOW_AT_ONCE))
