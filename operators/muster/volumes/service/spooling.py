"""The calls for the requests that the model servers of a cluster keep: they write into folders of the claim, and these calls hand them out.

An operator's token alone counts here. Model servers have none: all that they reach is the folder of their own deployment.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from starlette.responses import StreamingResponse

from muster.core.errors import NotFound, SpecError, StoreError
from muster.core.holding import closing_handle
from muster.core.names import check_label, is_label
from muster.volumes.layout import Layout
from muster.volumes.service.archives import ArchiveMember, pack
from muster.volumes.service.calls import LIMIT_JSON_BYTES, Bind, Call, Served, route
from muster.volumes.service.spools import AT, Read, SpooledHour, Waiting
from muster.volumes.spool import HALF_MADE_SECONDS, SUFFIX, Spool
from muster.volumes.tree import open_regular

_MOST_HOUR_BYTES = 16 << 30  # of a deployment's files; a server can write any length

_HOUR = re.compile(r"\d{4}-\d\d-\d\dT\d\d\Z")
_opening = threading.Lock()  # of this process, which alone opens: one of the claim's a lost node might keep


def routes(_: Served) -> Iterator[Bind]:
    """Return every route of this module."""
    yield route("GET", AT, _waiting, turns="working", right="operates")
    yield route("PUT", f"{AT}/{{deployment}}", _open)
    yield route("GET", f"{AT}/{{deployment}}/{{hour}}", _fetch, turns="working", right="operates")
    yield route("POST", f"{AT}/{{deployment}}/{{hour}}/drop", _drop, turns="working", text=LIMIT_JSON_BYTES)


def _open(call: Call) -> None:
    """Make a deployment's folder and the key of its hashes, as the user that its pods run as."""
    if not call.served.keeps_requests:
        raise SpecError(
            "nothing on this cluster commits requests: set serving.requests.image in the chart's values, or leave log out"
        )
    with _opening:
        _spool(call).begin()


def _waiting(call: Call) -> Waiting:
    layout, now = call.served.store.layout, time.time()
    return Waiting(
        hours=tuple(
            SpooledHour(deployment=name, hour=hour)
            for name in _deployments(layout)
            for hour in Spool(layout.root, name).settled(now)
        )
    )


def _deployments(layout: Layout) -> list[str]:
    folder = layout.root / "predictions"
    return sorted(each.name for each in folder.glob("[!.]*") if is_label(each.name) and each.is_dir())


def _fetch(call: Call) -> StreamingResponse:
    hour = _hour(call)
    files = _spool(call).settled(time.time()).get(hour)
    if not files:
        raise NotFound(f"no requests of {call.part('deployment')} in {hour} wait to be committed")
    if (size := sum(file.lstat().st_size for file in files)) > _MOST_HOUR_BYTES:
        largest = max(files, key=lambda file: file.lstat().st_size)
        raise StoreError(
            f"the files of predictions/{call.part('deployment')} in {hour} have {size} bytes, of which at most {_MOST_HOUR_BYTES} are "
            f"committed: delete what no server wrote, the largest is {largest.name}, or lower the share of requests that are kept"
        )
    return StreamingResponse(pack(_members(files)), media_type="application/x-tar")


def _members(files: Sequence[Path]) -> Iterator[ArchiveMember]:
    """Yield each file, opened, so that nothing can replace it meanwhile: a link to the store's keys, say."""
    for file in files:
        with closing_handle(open_regular(str(file))) as handle:
            yield ArchiveMember(name=file.name, source=handle)


def _drop(call: Call) -> None:
    """Delete the files of an hour that a version has, but those that have grown since; and what killed servers left half-made."""
    read, spool, now = call.message(Read).sizes, _spool(call), time.time()
    for file in spool.settled(now).get(_hour(call), []):
        if file.name in read and file.lstat().st_size == read[file.name]:
            file.unlink(missing_ok=True)
    for part in spool.path.glob(f".*{SUFFIX}"):
        with suppress(OSError):  # a server may have made it anything; nothing waits for it
            if part.lstat().st_mtime < now - HALF_MADE_SECONDS:
                part.unlink()


def _spool(call: Call) -> Spool:
    return Spool(call.served.store.layout.root, check_label("deployment", call.part("deployment")))


def _hour(call: Call) -> str:
    hour = call.part("hour")
    if not _HOUR.match(hour):
        raise SpecError(f"hour {hour!r:.60}: expected one such as 2026-11-26T07")
    return hour
