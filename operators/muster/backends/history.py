"""How long earlier runs of jobs took, from the ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from muster.core.status import JobState
from muster.volumes.protocols import Ledger

NEWEST = 500


def durations(ledger: Ledger, *, newest: int = NEWEST) -> Mapping[str, Sequence[float]]:
    """Return seconds from start to end of the newest jobs that succeeded, by job name such as ``flights.train``."""
    ids = ledger.jobs()[-newest:]
    took = {
        each.job_id: each.ended - each.started
        for each in ledger.statuses(ids)
        if each.state is JobState.SUCCEEDED and each.started is not None and each.ended is not None
    }
    found: dict[str, list[float]] = {}
    for job_id, spec in ledger.specs(list(took)).items():
        found.setdefault(spec.name, []).append(took[job_id])
    return found
