"""How much room the store has, what ended jobs hold of it, giving that back and fetching it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from muster.core.room import CLAIM, Room
from muster.volumes.held import fetchable
from muster.volumes.service.archives import Member, pack
from muster.volumes.service.calls import Call, route
from muster.volumes.service.messages import Count, Holding, Jobs
from muster.volumes.service.site import Site
from muster.volumes.tree import open_regular


def routes(site: Site) -> Iterator[Route]:
    """Every route of this module."""
    yield route("GET", "/v1/room", _room, site=site)
    yield route("GET", "/v1/held", _held, site=site, threads=site.working)
    yield route("POST", "/v1/held/let-go", _let_go, site=site, threads=site.working)
    yield route("GET", "/v1/jobs/{job_id}/staged", _staged, site=site, threads=site.working)


def _room(call: Call) -> Room:
    return Room.of(call.site.store.layout.root, disk=CLAIM)


def _held(call: Call) -> Holding:
    return Holding(held=call.site.store.held())


def _let_go(call: Call) -> Count:
    return Count(count=call.site.store.let_go(call.message(Jobs).job_ids))


def _staged(call: Call) -> Response:
    """A tar of what an ended job staged."""
    stream = pack(_members(call))
    begun = next(stream)  # what is wrong is said, and does not just end the stream
    return StreamingResponse(chain((begun,), stream), media_type="application/x-tar")


def _members(call: Call) -> Iterator[Member]:
    """Each file by a handle that nothing else takes the place of."""
    for path, entry in fetchable(call.site.store, call.part("job_id")):
        handle = open_regular(entry.path)
        try:
            yield Member(name=path, source=Path(f"/proc/self/fd/{handle}"))
        finally:
            os.close(handle)
