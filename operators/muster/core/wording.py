"""Advice that both the worker (while a gang runs) and the store (at the commit) give."""

from __future__ import annotations

from muster.core.job import JobSpec


def one_replica(spec: JobSpec) -> str:
    """Return the advice for a script in which the first rank of each machine writes."""
    return f"a script that lets LOCAL_RANK 0 write wants `ranks={spec.world_size}` in one replica"
