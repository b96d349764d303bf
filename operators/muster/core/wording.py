"""Advice that a worker gives while a gang runs, and the store when it has ended."""

from __future__ import annotations

from muster.core.job import JobSpec


def one_replica(spec: JobSpec) -> str:
    """What a script wants that lets the first rank of each machine write."""
    return f"a script that lets LOCAL_RANK 0 write wants `ranks={spec.world_size}` in one replica"
