"""The versions that a job reads, looked at before it starts, and kept from gc while it runs."""

from __future__ import annotations

from muster.core.errors import NotFound
from muster.core.job import JobSpec, Pinned
from muster.volumes.protocols import Store


def check_inputs(job: JobSpec, store: Store) -> None:
    """Refuse a job whose versions are not what they were when they were pinned.

    :raises NotFound: a version is gone, or is another one under the same number.
    """
    for name, given in job.inputs.items():
        for pinned in given.versions:
            _check(name, pinned, store)


def lease_inputs(job: JobSpec, store: Store, *, job_id: str) -> None:
    """Keep what a job reads from gc, until the store is told to release it."""
    pinned = [version.address for given in job.inputs.values() for version in given.versions]
    if pinned:
        store.lease(pinned, holder=job_id)


def _check(name: str, pinned: Pinned, store: Store) -> None:
    (version,) = store.resolve(pinned.address)
    if version.digest != pinned.digest:
        raise NotFound(
            f"input {name}: {pinned.address} is {version.digest[:15]}…, the job was given {pinned.digest[:15]}…: "
            "this is another store than the one it was pinned in"
        )
