"""Which replicas an attempt of a gang has: all that its spec names, or, of an elastic gang, those in a file.

::

    staging/<job>/<attempt>/members     the indices of the replicas, in the order of their ranks

It is written before the attempt counts, and never changed: a gang that shrinks or grows begins another attempt.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from muster.core.job import JobSpec, Role
from muster.volumes.base import Staging
from muster.volumes.durability import write_whole


def write_members(staging: Staging, members: Sequence[int]) -> None:
    """Write down which replicas an attempt of an elastic gang has, before it counts."""
    write_whole(staging.members, " ".join(map(str, members)), durable=False)


def indices_of(staging: Staging) -> tuple[int, ...]:
    """Return the indices of an attempt's replicas; none where it has all that its spec names."""
    with suppress(FileNotFoundError):
        return tuple(map(int, staging.members.read_text(encoding="ascii").split()))
    return ()


def members_of(staging: Staging, spec: JobSpec) -> list[tuple[Role, int]]:
    """Return the role and the index of each replica of an attempt, in the order of their ranks."""
    own = indices_of(staging) if spec.elastic else ()
    return [(role, index) for role in spec.roles for index in own or range(role.replicas)]


def names_of(staging: Staging, spec: JobSpec) -> list[str]:
    """Return the names of an attempt's replicas, such as ``main-0``, in the order of their ranks."""
    return [f"{role.name}-{index}" for role, index in members_of(staging, spec)]
