"""Whether the store is whole, and what of it may go: fsck and gc, done where the store is.

A check answers with a line for each version that it looks at, a Checking, and last with its Report, or
with the error that ended it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from queue import SimpleQueue
from threading import Thread

from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from muster.core.errors import MusterError
from muster.core.wire import dumps
from muster.volumes import retention
from muster.volumes.folder import FolderStore
from muster.volumes.fsck import check
from muster.volumes.service.calls import Call, route
from muster.volumes.service.messages import Checking, Rules, Swept
from muster.volumes.service.refusals import document
from muster.volumes.service.site import Site


def routes(site: Site) -> Iterator[Route]:
    """Every route of this module."""
    yield route("POST", "/v1/gc/plan", _plan, site=site, threads=site.working)
    yield route("POST", "/v1/gc/collect", _collect, site=site, threads=site.working)
    yield route("POST", "/v1/fsck", _fsck, site=site)


def _plan(call: Call) -> Swept:
    return _swept(retention.plan(call.site.store, **vars(call.message(Rules))), freed_bytes=0)


def _collect(call: Call) -> Swept:
    done = retention.collect(call.site.store, **vars(call.message(Rules)))
    return _swept(done.plan, freed_bytes=done.freed_bytes)


def _swept(plan: retention.Plan, *, freed_bytes: int) -> Swept:
    return Swept(**{**vars(plan), "torn": tuple(map(str, plan.torn))}, freed_bytes=freed_bytes)


def _fsck(call: Call) -> Response:
    deep = bool(call.query_number("deep", 0))
    return StreamingResponse(_checking(call.site.store, deep=deep), media_type="application/x-ndjson")


def _checking(store: FolderStore, *, deep: bool) -> Iterator[str]:
    lines: SimpleQueue[str | None] = SimpleQueue()

    def tell(address: str, done: int, count: int) -> None:
        lines.put(dumps(Checking(address=address, done=done, count=count)))

    def work() -> None:
        try:
            lines.put(dumps(check(store, deep=deep, progress=tell)))
        except MusterError as error:
            lines.put(json.dumps(document(error)))
        finally:
            lines.put(None)

    Thread(target=work, name="fsck", daemon=True).start()
    for line in iter(lines.get, None):
        yield f"{line}\n"
