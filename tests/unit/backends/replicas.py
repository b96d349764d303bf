"""Replicas of a gang that reads and writes nothing."""

from __future__ import annotations

from pathlib import Path

from muster.core.job import JobSpec
from muster.core.replica import Replica


def bare_replica(spec: JobSpec, index: int, *, report: Path) -> Replica:
    """Return a replica that has nothing but its job and the file in which it reports."""
    return Replica(
        job_id="gang",
        spec=spec,
        attempt=1,
        role="main",
        index=index,
        code=None,
        inputs={},
        staging={},
        checkpoints="",
        scratch="",
        sealed="",
        report=str(report),
    )
