"""How a job ends: its sealed attempt becomes versions, or an error becomes a verdict."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from muster.backends.local.places import JobFolder
from muster.core.advice import advice_on, uncommitted
from muster.core.errors import BadOutput, CannotSchedule, ImageError, MusterError, NotFound, SpecError
from muster.core.replica import Report
from muster.core.room import Room, is_full, make_room
from muster.core.status import JobResult
from muster.core.text import one_line
from muster.core.verdict import Cause, Verdict
from muster.core.wire import loads
from muster.volumes.folder import FolderStore
from muster.volumes.protocols import LocalStore
from muster.volumes.survived import bad_output

_OTHER_FILE = "Hash mismatch for "  # uv's words
_MAKE_ROOM = "make room on the disk that the message names, then run again"


def commit(store: LocalStore, job_id: str, folder: JobFolder) -> JobResult:
    """Commit the sealed attempt, again if it was committed already, and return the job's result.

    :raises StoreError: it cannot be committed; nothing is visible.
    """
    staging = store.staging(job_id)
    if staging is None:
        raise NotFound(f"job {job_id}: no attempt of it was ever started")
    first = store.ledger.spec(job_id).roles[0].name
    # What rank 0's replica reported; it was written before the replica sealed.
    report = loads(Report, folder.report(staging.attempt, first, 0).read_bytes())
    links = store.ledger.status(job_id).links
    versions = store.commit(job_id, attempt=staging.attempt, metrics=report.metrics, modules=report.modules)
    return JobResult(
        outputs={name: tuple(version.address for version in made) for name, made in versions.items()},
        metrics=report.metrics,
        modules=report.modules,
        links=links,
    )


def verdict_of(
    error: Exception, *, committing: bool, job_id: str, store: FolderStore, cache: Path
) -> Verdict:
    """Say what an error means for the job that it ended.

    :param cache: where its image is made.
    """
    message = str(error) if isinstance(error, (MusterError, OSError)) else f"{type(error).__name__}: {error}"
    if is_full(error) or (isinstance(error, ImageError) and os.strerror(errno.ENOSPC) in message):
        return _full(error, message, job_id=job_id, store=store, cache=cache)
    if isinstance(error, BadOutput):
        return bad_output(error, store.ledger, job_id)
    cause = _cause(error, committing=committing)
    advice = uncommitted(cause, job_id) if cause is Cause.COMMIT_FAILED else advice_on(cause)
    return Verdict(cause=cause, message=message, advice=advice)


def _full(error: Exception, message: str, *, job_id: str, store: FolderStore, cache: Path) -> Verdict:
    """Name the disk that is full, and what makes room there."""
    path = cache if isinstance(error, ImageError) else _full_path(error, store.layout.root)
    try:
        full, kept = Room.of(path), Room.of(store.layout.root)
    except OSError:  # what cannot be asked is left out
        return Verdict(cause=Cause.DISK_FULL, message=message, advice=_MAKE_ROOM)
    checkpoints = None
    with suppress(OSError, MusterError):
        staging = store.staging(job_id)
        checkpoints = None if staging is None else staging.checkpoints
    advice = make_room(checkpoints) if full.disk == kept.disk else _MAKE_ROOM
    return Verdict(cause=Cause.DISK_FULL, message=f"{one_line(message)[:240]}: {full}", advice=advice)


def _full_path(error: Exception, store: Path) -> Path:
    """What an error names, where that tells its disk: a handle or a name below an open folder does not."""
    known = error if isinstance(error, OSError) else error.__cause__
    named = getattr(known, "filename", None)
    path = Path(named) if isinstance(named, (str, Path)) else store
    return path if path.is_absolute() and path.parts[1:2] != ("proc",) else store


def _cause(error: Exception, *, committing: bool) -> Cause:
    if isinstance(error, CannotSchedule):
        return Cause.UNSCHEDULABLE
    if isinstance(error, ImageError):
        # The index has another file under the name that the lock has: so it will have at the next try.
        return Cause.SPEC_ERROR if _OTHER_FILE in str(error) else Cause.IMAGE_UNAVAILABLE
    if committing:
        return Cause.COMMIT_FAILED
    return Cause.SPEC_ERROR if isinstance(error, (SpecError, NotFound)) else Cause.BACKEND_ERROR
