"""Runs fsck where the store is.

A check answers with a Checking line for each version that it checks, and at last with its Report or the
error that ended it. It runs to its end even without a client; another request meanwhile joins it.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from functools import partial
from weakref import WeakValueDictionary

import anyio
from starlette.responses import Response, StreamingResponse

from muster.core.errors import MusterError, StoreError
from muster.core.wire import dumps
from muster.volumes.durability import translated
from muster.volumes.folder import FolderStore
from muster.volumes.service.calls import Bind, Call, route
from muster.volumes.service.refusals import document
from muster.volumes.service.served import Served

LOOK_SECONDS = 0.1

_LOG = logging.getLogger(__name__)


def routes(served: Served) -> Iterator[Bind]:
    """Return every route of this module."""
    yield route("POST", "/v1/fsck", partial(_fsck, checks=Checks(served.store)))


def _fsck(call: Call, *, checks: Checks) -> Response:
    deep, protect = bool(call.query_number("deep", 0)), bool(call.query_number("protect", 0))
    check = checks.joined(deep=deep, protect=protect)
    return StreamingResponse(_told(check), media_type="application/x-ndjson")


async def _told(check: RunningCheck) -> AsyncIterator[str]:
    """Yield all lines of a check, from its first, without a thread."""
    said, last = 0, ""
    while not last:
        last = check.last  # read before the lines: no line follows it
        lines = check.lines[said:]
        said += len(lines)
        for line in lines:
            yield f"{line}\n"
        if not last:
            await anyio.sleep(LOOK_SECONDS)
    yield f"{last}\n"


@dataclass(frozen=True, kw_only=True)
class Checking:
    """Progress of a check: its present version, and the numbers of checked versions and of all."""

    address: str
    done: int
    count: int


class RunningCheck:
    """One check, in a thread of its own.

    `lines` are its progress; `last`, at its end, is its Report or the error that ended it.
    """

    def __init__(self, store: FolderStore, *, deep: bool, protect: bool) -> None:
        self.lines: list[str] = []
        self.last = ""
        self._check = partial(store.check, deep=deep, protect=protect, progress=self._tell)
        threading.Thread(target=self._run, name="fsck", daemon=True).start()

    def _run(self) -> None:
        try:
            with translated("check the store"):
                self.last = dumps(self._check())
        except MusterError as error:
            self.last = json.dumps(document(error))
        except Exception as error:
            _LOG.exception("a check failed")
            said = f"the check failed ({type(error).__name__}): the store service's log says at what"
            self.last = json.dumps(document(StoreError(said)))

    def _tell(self, address: str, done: int, count: int) -> None:
        self.lines.append(dumps(Checking(address=address, done=done, count=count)))


class Checks:
    """The running checks, at most one of a kind: a request for a running check joins it."""

    def __init__(self, store: FolderStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._running: WeakValueDictionary[tuple[bool, bool], RunningCheck] = WeakValueDictionary()

    def joined(self, *, deep: bool, protect: bool) -> RunningCheck:
        """Return the running check, or start one."""
        kind = (deep, protect)
        with self._lock:
            check = self._running.get(kind)
            if check is None or check.last:
                check = self._running[kind] = RunningCheck(self._store, deep=deep, protect=protect)
            return check
