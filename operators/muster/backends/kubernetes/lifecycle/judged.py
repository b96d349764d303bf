"""What jobs were found to be at the last look, for as long as a new look would find the same."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from muster.backends.capacity import QueuePlace
from muster.backends.kubernetes.state.seen import JobObjects
from muster.core.status import JobStatus

# Verdicts also depend on how long something has been so; none is in more of a hurry than a hub that looks
# every few seconds.
KEPT_SECONDS = 4.0
MOST_JOBS = 4096


@dataclass(frozen=True, kw_only=True)
class Basis:
    """All that a judgement on a job rests on, but for the time.

    :param recorded: its status in the ledger.
    """

    seen: JobObjects
    recorded: JobStatus
    place: QueuePlace | None

    def equals(self, other: Basis) -> bool:
        """Whether both are the same: what is seen in a mirror is one object until it changes."""
        return self.seen is other.seen and self.place == other.place and self.recorded == other.recorded


class Judged:
    """The judgements on jobs that go on. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[str, tuple[float, Basis, JobStatus]] = {}

    def recall(self, job_id: str, basis: Basis, *, now: float) -> JobStatus | None:
        """Return how a job is if it was judged on the same basis a moment ago."""
        since, before, found = self._kept.get(job_id, (0.0, basis, None))
        return found if 0.0 <= now - since < KEPT_SECONDS and before.equals(basis) else None

    def keep(self, job_id: str, basis: Basis, found: JobStatus, *, now: float) -> JobStatus:
        """Remember a judgement, and return it; of very many the oldest are forgotten."""
        with self._lock:
            self._kept.pop(job_id, None)
            self._kept[job_id] = now, basis, found
            while len(self._kept) > MOST_JOBS:
                self._kept.pop(next(iter(self._kept)))
        return found

    def forget(self, job_id: str) -> None:
        """Know nothing more of a job, which has ended."""
        with self._lock:
            self._kept.pop(job_id, None)
