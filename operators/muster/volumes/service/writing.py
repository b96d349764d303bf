"""Calls outside the table, most with a stream as body: versions, code, workers, lines of logs, statuses."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from muster.core.errors import SpecError
from muster.core.names import check_digest, check_new_partition, check_request, check_volume
from muster.core.status import JobStatus
from muster.core.wire import parsed
from muster.volumes import snapshot
from muster.volumes.base import Version
from muster.volumes.durability import translated, write_whole
from muster.volumes.gather import Draft, check_path
from muster.volumes.service.archives import unpack
from muster.volumes.service.calls import (
    LIMIT_JSON_BYTES,
    LIMIT_LINES_BYTES,
    LIMIT_WORKER_BYTES,
    WORKER,
    Bind,
    Call,
    Count,
    route,
)
from muster.volumes.service.journal import ONCE
from muster.volumes.service.served import Served
from muster.volumes.service.table import Recorded
from muster.volumes.tree import remove

_LIMIT_CODE_BYTES = snapshot.LIMIT_BYTES + snapshot.LIMIT_FILES * 4096  # the tar's own headers

_JOB = "/v1/jobs/{job_id}"


def routes(_: Served) -> Iterator[Bind]:
    """Return every route of this module."""
    yield route("PUT", "/v1/code/{digest}", _put, turns="working")
    yield route("PUT", "/v1/uploads/{request}", _add, turns="working")
    yield route("PUT", f"{_JOB}/worker", _equip, text=LIMIT_WORKER_BYTES)
    yield route("PUT", f"{_JOB}/status", _update, text=LIMIT_JSON_BYTES)
    yield route("POST", f"{_JOB}/log", _append, text=LIMIT_LINES_BYTES)


def _put(call: Call) -> None:
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


def _add(call: Call) -> Version:
    """Make the sent files a version, once for each request."""
    request, store = check_request(call.part("request")), call.served.store
    volume, partition = check_volume(call.query("volume")), call.query("partition", "") or None
    if partition is not None:
        check_new_partition(partition)
    checkpoints = _checkpoints(call.query("checkpoints", "{}"))
    with translated(f"put into {volume}"):
        return store.commits.put(
            f"put-{request}",
            volume,
            lambda ready: store.ended.take_in(
                _receive(call, ready / "0" / "data", volume, partition), checkpoints
            ),
            note=call.query("note", ""),
        )


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
