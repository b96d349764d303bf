"""What a job needs of the store and of this process, looked at before it is entered; and its inputs, kept from gc."""

from __future__ import annotations

import os
from collections.abc import Callable

from muster.core.errors import ImageError, NotFound, SpecError
from muster.core.job import JobSpec, SecretRef
from muster.volumes.protocols import Store

Resolve = Callable[[SecretRef], str]
"""Returns a secret's value; raises KeyError where this process does not have it."""


def from_environment(secret: SecretRef) -> str:
    """Return the value of a secret that is a variable of this process; KeyError where it is not."""
    if secret.source != "environment":
        raise KeyError(secret.name)
    return os.environ[secret.name]


def check_store(job: JobSpec, store: Store) -> None:
    """Refuse a job of which the store lacks something.

    :raises ImageError: the image's lock is not there; :raises SpecError: its code is not.
    :raises NotFound: a version that it reads is gone, or is another one under the same number.
    """
    if not store.holds(job.image_digest):
        raise ImageError(
            f"image {job.image}: its lock {job.image_digest[:15]}… is not in the store; submit the job "
            "from the Dag again, which puts it there"
        )
    if job.code is not None and not store.holds(job.code):
        raise SpecError(
            f"job {job.name}: its code snapshot {job.code[:15]}… is not in the store; submit the job "
            "from the Dag again, which puts it there"
        )
    check_inputs(job, store)


def check_inputs(job: JobSpec, store: Store) -> None:
    """Refuse a job whose versions are not what they were when they were pinned.

    :raises NotFound: a version is gone, or is another one under the same number.
    """
    for name, given in job.inputs.items():
        for pinned in given.versions:
            (version,) = store.resolve(pinned.address)
            if version.digest != pinned.digest:
                raise NotFound(
                    f"input {name}: {pinned.address} is {version.digest[:15]}…, the job was given {pinned.digest[:15]}…: "
                    "this is another store than the one it was pinned in"
                )


def lease_inputs(job: JobSpec, store: Store, *, job_id: str) -> None:
    """Keep what a job reads from gc, until the store is told to release it."""
    pinned = [version.address for given in job.inputs.values() for version in given.versions]
    if pinned:
        store.lease(pinned, holder=job_id)


def secret_values(job: JobSpec, resolve: Resolve) -> dict[str, str]:
    """Return the values of a job's secrets by variable, but of those that lie in a Secret of the cluster.

    :raises SpecError: this process does not have one.
    """
    return {
        variable: _value(variable, secret, resolve)
        for variable, secret in job.secrets.items()
        if secret.source != "kubernetes"
    }


def _value(variable: str, secret: SecretRef, resolve: Resolve) -> str:
    try:
        return resolve(secret)
    except KeyError as error:
        missing = f"there is no environment variable {secret.name!r} here; set it"
        if secret.source == "connection":
            conn_id, _, field = secret.name.partition("#")
            missing = f"there is no connection {conn_id!r} here; make it"
            if error.args != (conn_id,):
                missing = f"connection {conn_id!r} has no {field or 'password'!r}; set it"
        raise SpecError(f"secret {variable}: {missing} where the job is submitted") from error
