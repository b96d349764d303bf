"""Enters a job into the ledger: checked before, once, and with what it was warned of in its log."""

from __future__ import annotations

from collections.abc import Callable

from muster.backends.jobs.checks import check_store
from muster.core.errors import Conflict, NotFound, SpecError
from muster.core.job import JobSpec
from muster.core.names import check_job_id
from muster.volumes.protocols import Store

Check = Callable[[JobSpec], tuple[str, ...]]


def enter(job: JobSpec, *, job_id: str, owner: str | None, store: Store, check: Check) -> None:
    """Enter a job that is not known yet, with warnings as the first lines of its log.

    A job that is known is not checked again: what it was made of need not be here any more.

    :param check: refuses what can never run, and returns warnings about what runs otherwise.
    :raises SpecError: it can never run here, or the job_id is taken by another spec.
    """
    check_job_id(job_id)
    warnings: tuple[str, ...] = ()
    if not _known(job_id, store):
        warnings = check(job)
        check_store(job, store)
    try:
        created = store.ledger.create(job_id, job, owner=owner)
    except Conflict as error:
        raise SpecError(str(error)) from error
    if created and warnings:
        store.ledger.append(job_id, "".join(f"[muster] {line}\n" for line in warnings).encode())


def _known(job_id: str, store: Store) -> bool:
    try:
        store.ledger.status(job_id)
    except NotFound:
        return False
    return True
