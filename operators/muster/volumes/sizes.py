"""How many replicas an attempt of an elastic gang has: a gang that shrinks or grows begins another attempt.

::

    staging/<job>/<attempt>/replicas     a number, written before the attempt counts; without it, all that the spec names
"""

from __future__ import annotations

from contextlib import suppress

from muster.core.job import JobSpec
from muster.volumes.base import Staging
from muster.volumes.durability import write_whole


def note_size(staging: Staging, replicas: int) -> None:
    """Write down how many replicas an attempt has, before it counts."""
    write_whole(staging.replicas, str(replicas), durable=False)


def as_begun(staging: Staging, spec: JobSpec) -> JobSpec:
    """Return the job with the replicas that this attempt of it has."""
    if not spec.elastic:
        return spec
    with suppress(FileNotFoundError):
        return spec.sized(int(staging.replicas.read_text(encoding="ascii")))
    return spec.sized(spec.replicas)
