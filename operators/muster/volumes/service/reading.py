"""Calls that return streams of bytes: manifests, versions, files, code, logs, and staged files of ended jobs.

A version's bytes are sent as one stream, the files of its manifest one after the other. A client with the
manifest knows each file's offset, so it can request any part by ``Range: bytes=FIRST-LAST``, and resume an
interrupted download.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import chain, takewhile
from pathlib import Path
from typing import BinaryIO

from starlette.responses import FileResponse, Response, StreamingResponse

from muster.core.errors import Corrupt, SpecError
from muster.volumes import tombstones
from muster.volumes.documents import parse, show
from muster.volumes.manifest import Entry
from muster.volumes.service.archives import ArchiveMember, exactly, in_chunks, members, pack
from muster.volumes.service.calls import LIMIT_LINES_BYTES, Bind, Call, route
from muster.volumes.service.served import Served
from muster.volumes.service.table import CURSOR
from muster.volumes.tree import open_regular, runs

_RANGE = re.compile(r"bytes=(\d{1,18})-(\d{1,18})?\Z")


def routes(_: Served) -> Iterator[Bind]:
    """Return every route of this module."""
    yield route("GET", "/v1/manifest", _manifest)
    yield route("GET", "/v1/manifest/index", _index)
    yield route("GET", "/v1/data", _data)
    yield route("GET", "/v1/files/{where:path}", _file)
    yield route("GET", "/v1/code/{digest}", _code)
    yield route("GET", "/v1/jobs/{job_id}/log", _log)
    yield route("GET", "/v1/jobs/{job_id}/staged", _staged, turns="working")
    yield route("GET", "/v1/jobs/{job_id}/written", _written, turns="working")


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
    """Send a tar of an ended job's staged files."""
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
        handle = open_regular(entry.path)
        try:
            yield ArchiveMember(name=path, source=handle, runs=runs(os.fstat(handle)))
        finally:
            os.close(handle)
