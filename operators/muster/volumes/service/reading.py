"""Calls outside the table, most with a stream as answer or body: manifests, versions, files, code, logs, staged files, workers, statuses.

A version's bytes are sent as one stream, the files of its manifest one after the other. A client with the
manifest knows each file's offset, so it can request any part by ``Range: bytes=FIRST-LAST``, and resume an
interrupted download.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from functools import partial
from itertools import chain, takewhile
from pathlib import Path
from typing import BinaryIO

from starlette.responses import FileResponse, Response, StreamingResponse

from muster.core.errors import Conflict, Corrupt, SpecError
from muster.core.holding import closing_handle
from muster.core.names import check_digest, check_new_partition, check_request, check_volume
from muster.core.status import JobStatus
from muster.core.wire import parsed
from muster.volumes import snapshot, tombstones
from muster.volumes.base import Version
from muster.volumes.documents import parse, show
from muster.volumes.durability import translated, write_whole
from muster.volumes.gather import Draft, check_path
from muster.volumes.manifest import Entry
from muster.volumes.service.archives import ArchiveMember, exactly, in_chunks, members, pack, unpack
from muster.volumes.service.calls import (
    LIMIT_JSON_BYTES,
    LIMIT_LINES_BYTES,
    LIMIT_WORKER_BYTES,
    WORKER,
    Bind,
    Call,
    Count,
    Served,
    route,
)
from muster.volumes.service.journal import ONCE
from muster.volumes.service.table import CURSOR, Recorded
from muster.volumes.tree import open_regular, remove, runs

_RANGE = re.compile(r"bytes=(\d{1,18})-(\d{1,18})?\Z")


def routes(_: Served) -> Iterator[Bind]:
    """Return every route of this module."""
    yield route("GET", "/v1/manifest", _manifest, person="reads")
    yield route("GET", "/v1/manifest/index", _index, person="reads")
    yield route("GET", "/v1/data", _data, person="reads")
    yield route("GET", "/v1/files/{where:path}", _file, person="reads")
    yield route("GET", "/v1/code/{digest}", _code)
    yield route("GET", "/v1/jobs/{job_id}/log", _log, person="reads")
    yield route("GET", "/v1/jobs/{job_id}/staged", _staged, turns="working", person="reads")
    yield route("GET", "/v1/jobs/{job_id}/written", _written, turns="working", person="reads")
    yield route("PUT", "/v1/code/{digest}", _put_code, turns="working")
    yield route("PUT", "/v1/uploads/{request}", _put_version, turns="working", person="changes")
    yield route("PUT", f"{_JOB}/worker", _equip, text=LIMIT_WORKER_BYTES)
    yield route("PUT", f"{_JOB}/status", _update, text=LIMIT_JSON_BYTES, right="clicks")
    yield route("POST", f"{_JOB}/log", _append, text=LIMIT_LINES_BYTES, right="clicks")


def _manifest(call: Call) -> Response:
    """Send a manifest, or a range of its bytes; that of a deleted version, which is small, whole."""
    store, record = call.served.store, call.served.store.record(call.query("address"))
    path = store.layout.version(record.volume, record.number) / "MANIFEST"
    gone = None if path.exists() else tombstones.find(store.layout, record.volume, record.number)
    if gone is not None:
        return Response(gone.manifest, media_type="text/plain; charset=utf-8")
    return FileResponse(path, media_type="text/plain; charset=utf-8", stat_result=path.stat())


def _index(call: Call) -> Response:
    """Send the index of a manifest (:mod:`muster.volumes.pages`), which says the ranges of it that belong together."""
    index = call.served.store.manifest(call.query("address")).index
    return Response(index.render(), media_type="text/plain; charset=utf-8")


def _data(call: Call) -> Response:
    address, store = call.query("address"), call.served.store
    data = store.path(address)
    entries = store.manifest(address)
    size = entries.size_bytes
    first, last = _range(call.request.headers.get("range", "bytes=0-"), size)
    headers = {"content-length": str(last + 1 - first), "content-range": f"bytes {first}-{last}/{size}"}
    stream = in_chunks(_stream(data, entries.from_byte(first), first, last + 1))
    begun = next(stream, b"")  # an error in the first file becomes the answer
    return StreamingResponse(
        chain((begun,), stream),
        status_code=206,
        headers=headers,
        media_type="application/octet-stream",
    )


def _range(text: str, size: int) -> tuple[int, int]:
    match = _RANGE.match(text)
    first, last = (int(match[1]), int(match[2] or size - 1)) if match else (0, size)
    if not first <= last + 1 <= size:
        raise SpecError(
            f"range {text!r:.60} is none of the {size} bytes that there are: ask for bytes=FIRST-LAST"
        )
    return first, last


def _stream(data: Path, files: Iterator[tuple[int, Entry]], first: int, end: int) -> Iterator[bytes]:
    """Yield the bytes from `first` to before `end` of all files one after the other.

    :param files: those from the one with `first` on, each with where it begins.
    """
    for begins, entry in takewhile(lambda each: each[0] < end, files):
        begin, stop = max(first - begins, 0), min(end - begins, entry.size_bytes)
        if begin >= stop:
            continue
        with _opened(data, entry) as file:
            file.seek(begin)
            yield from exactly(file, stop - begin, what=entry.path)


def _opened(data: Path, entry: Entry) -> BinaryIO:
    """Open a file of a version. :raises Corrupt: it is missing, or has another length."""
    path = data / entry.path
    try:
        file = path.open("rb")
    except FileNotFoundError as error:
        raise Corrupt(f"{path} is gone: run `muster volumes fsck` where the store is") from error
    if file.seek(0, os.SEEK_END) != entry.size_bytes:
        file.close()
        raise Corrupt(
            f"{path} has not its {entry.size_bytes} bytes: run `muster volumes fsck` where the store is"
        )
    return file


def _file(call: Call) -> Response:
    return show(call.served.store, parse(call.part("where")))


def _code(call: Call) -> Response:
    folder = call.served.store.code(call.part("digest"))
    return StreamingResponse(pack(members(folder)), media_type="application/x-tar")


def _log(call: Call) -> Response:
    data, cursor = call.served.store.ledger.read(
        call.part("job_id"),
        after=call.query_number("after", 0),
        limit_bytes=min(call.query_number("limit_bytes", 1 << 20), LIMIT_LINES_BYTES),
    )
    return Response(data, headers={CURSOR: str(cursor)}, media_type="application/octet-stream")


def _staged(call: Call) -> Response:
    return _tar(call.served.store.ended.fetchable(call.part("job_id")))


def _written(call: Call) -> Response:
    """Send a tar of the files that a job has written so far, those whose names have the given beginning."""
    return _tar(call.served.store.ended.written(call.part("job_id"), begins=call.query("begins")))


def _tar(files: Iterator[tuple[str, os.DirEntry[str]]]) -> Response:
    stream = pack(_members(files))
    begun = next(stream)  # an error in the first file becomes the answer
    return StreamingResponse(chain((begun,), stream), media_type="application/x-tar")


def _members(files: Iterator[tuple[str, os.DirEntry[str]]]) -> Iterator[ArchiveMember]:
    """Yield each file, opened, so that nothing can replace it meanwhile."""
    for path, entry in files:
        with closing_handle(open_regular(entry.path)) as handle:
            yield ArchiveMember(name=path, source=handle, runs=runs(os.fstat(handle)))


_LIMIT_CODE_BYTES = snapshot.LIMIT_BYTES + snapshot.LIMIT_FILES * 4096  # the tar's own headers

_JOB = "/v1/jobs/{job_id}"


def _put_code(call: Call) -> None:
    """Store a code snapshot with the digest in the path."""
    digest, layout = check_digest("code snapshot", call.part("digest")), call.served.store.layout
    body = call.body(limit_bytes=_LIMIT_CODE_BYTES)
    # gc deletes what a crash leaves there. With a time an hour ahead, `gc --now` does not delete what comes in meanwhile.
    folder = layout.trash / f"{int(time.time()) + 3600}-{os.urandom(8).hex()}"
    try:
        folder.mkdir()
        files = unpack(body, folder, check=partial(check_path, output="code"))
        found = call.served.store.put(folder, list(files))
    finally:
        remove(folder)
    if found != digest:
        raise SpecError(f"what was sent as code snapshot {digest} is {found}: it was changed on its way")


def _put_version(call: Call) -> Version:
    """Make the sent files a version, once for each request."""
    request, store = check_request(call.part("request")), call.served.store
    volume, partition = check_volume(call.query("volume")), call.query("partition", "") or None
    if partition is not None:
        check_new_partition(partition)
    checkpoints = _checkpoints(call.query("checkpoints", "{}"))
    with translated(f"put into {volume}"):
        made = store.commits.put(
            f"put-{request}",
            volume,
            lambda ready: store.ended.take_in(
                _receive(call, ready / "0" / "data", volume, partition), checkpoints
            ),
            note=call.query("note", ""),
        )
    if made.volume != volume:
        raise Conflict(
            f"request {request} has put a version already, into another volume: send another request"
        )
    return made


def _checkpoints(text: str) -> dict[str, str]:
    """Read which job's checkpoints go into which folder."""
    found = parsed(text, what="checkpoints")
    if not all(isinstance(each, str) for each in found.values()):
        raise SpecError(f"checkpoints is {text!r:.120}: need an object of a job's id by folder")
    return found


def _receive(call: Call, data: Path, volume: str, partition: str | None) -> Draft:
    remove(data)
    data.mkdir(parents=True)
    files = unpack(call.body(limit_bytes=None), data, check=lambda path: check_path(path, output=volume))
    if not files:
        raise SpecError(f"nothing was sent for {volume}: a version holds one file or more")
    return Draft(folder=data, output="data", volume=volume, partition=partition, source="", files=files)


def _equip(call: Call) -> None:
    folder = call.served.store.ledger.check(call.part("job_id"))
    write_whole(folder / WORKER, call.text)


def _update(call: Call) -> Recorded | None:
    status = call.message(JobStatus)
    if status.job_id != call.part("job_id"):
        raise SpecError(
            f"the status is that of job {status.job_id!r:.60}, not of {call.part('job_id')!r:.60}"
        )
    owner = call.request.query_params.get("owner")
    recorded = call.served.committer.update(status, owner=owner)
    return None if owner is None else Recorded(yes=recorded)


def _append(call: Call) -> Count:
    journal = call.served.journals.of(call.part("job_id"))
    return Count(count=journal.append(f"{ONCE}{call.query('request')}", call.text, offset=0))
