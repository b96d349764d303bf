"""How a job ends: its sealed attempt becomes versions, or an error becomes a verdict."""

from __future__ import annotations

import errno

from muster.backends.local.places import JobFolder
from muster.core.errors import BadOutput, CannotSchedule, ImageError, MusterError, NotFound, SpecError
from muster.core.replica import Report
from muster.core.status import JobResult
from muster.core.verdict import Cause, Verdict
from muster.core.wire import loads
from muster.volumes.base import Store

CANCELLED = "somebody asked for its end: by muster jobs cancel, or by ending its task in Airflow"
CANCEL_ADVICE = "run it again if that was not meant"

_MAKE_ROOM = "make room on the disk that the message names, then run again"
_ADVICE = {
    Cause.USER_ERROR: "mend the code that writes it and run again; nothing of it is visible",
    Cause.SPEC_ERROR: "mend the Dag; asking again cannot help",
    Cause.UNSCHEDULABLE: "ask for less, or run it on a bigger machine",
    Cause.IMAGE_UNAVAILABLE: "see uv's last lines in the log, mend the image and run again",
    Cause.COMMIT_FAILED: "nothing of it is visible; mend what the message names (make room on the disk?), run again",
    Cause.BACKEND_ERROR: "run it again; if it happens again, report it with the lines above",
}


def commit(store: Store, job_id: str, folder: JobFolder) -> JobResult:
    """Commit the sealed attempt, again if it was committed already, and return the job's result.

    :raises StoreError: it cannot be committed; nothing is visible.
    """
    staging = store.staging(job_id)
    if staging is None:
        raise NotFound(f"job {job_id}: no attempt of it was ever started")
    first = store.ledger.spec(job_id).roles[0].name
    report = _read(folder, staging.attempt, first)
    links = store.ledger.status(job_id).links
    versions = store.commit(job_id, attempt=staging.attempt, metrics=report.metrics, modules=report.modules)
    return JobResult(
        outputs={name: tuple(version.address for version in made) for name, made in versions.items()},
        metrics=report.metrics,
        modules=report.modules,
        links=links,
    )


def verdict_of(error: Exception, *, committing: bool) -> Verdict:
    """Say what an error means for the job that it ended."""
    cause = _cause(error, committing=committing)
    message = str(error) if isinstance(error, (MusterError, OSError)) else f"{type(error).__name__}: {error}"
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    return Verdict(cause=cause, message=message, advice=_MAKE_ROOM if full else _ADVICE[cause])


def _cause(error: Exception, *, committing: bool) -> Cause:
    if isinstance(error, CannotSchedule):
        return Cause.UNSCHEDULABLE
    if isinstance(error, ImageError):
        return Cause.IMAGE_UNAVAILABLE
    if isinstance(error, BadOutput):
        return Cause.USER_ERROR
    if committing:
        return Cause.COMMIT_FAILED
    return Cause.SPEC_ERROR if isinstance(error, (SpecError, NotFound)) else Cause.BACKEND_ERROR


def _read(folder: JobFolder, attempt: int, role: str) -> Report:
    """Read what rank 0's replica reported; it was written before the replica sealed."""
    return loads(Report, folder.report(attempt, role, 0).read_bytes())
