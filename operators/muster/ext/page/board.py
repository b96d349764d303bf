"""Every job of one store, as the page knows it: ended ones are read once, others each time."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from muster.airflow.page.task import UNREADABLE
from muster.backends.base import Backend
from muster.core.errors import MusterError, NotFound
from muster.core.job import JobSpec
from muster.core.status import JobState, JobStatus
from muster.volumes.base import TaskEnd
from muster.volumes.protocols import Ledger
from muster.volumes.runs import noted

_ROOM_SECONDS = 30.0
STATES = (*(state.value for state in JobState), UNREADABLE)


@dataclass(frozen=True, kw_only=True)
class Job:
    """One job of the ledger; only its id and `error` are set where its files cannot be read."""

    job_id: str
    status: JobStatus | None = None
    spec: JobSpec | None = None
    error: str = ""

    @property
    def dag_id(self) -> str:
        """The Dag that submitted it; empty if none did, or if it cannot be read."""
        return self.spec.origin.dag_id if self.spec else ""

    @property
    def run_id(self) -> str:
        """The run that submitted it; empty if none did."""
        return self.spec.origin.run_id if self.spec else ""

    @property
    def stage(self) -> str:
        """Its task, with the map index where it is mapped; empty of a job that cannot be read."""
        return self.spec.origin.stage if self.spec else ""

    @property
    def is_trial(self) -> bool:
        """Whether it trains a trial of a search; its owner is the search."""
        return self.spec is not None and self.spec.origin.trial >= 0

    @property
    def words(self) -> str:
        """The text that a search looks through, in lower case."""
        origin = self.spec.origin if self.spec else None
        told = (self.spec.name, origin.dag_id, origin.task_id, origin.run_id) if self.spec and origin else ()
        return " ".join((self.job_id, *told)).lower()

    @property
    def state(self) -> str:
        """Its state, for people."""
        return self.status.state.value if self.status else UNREADABLE

    @property
    def ended(self) -> bool:
        """Whether its documents will not change any more."""
        return self.status is not None and self.status.state.ended


class Board:
    """Every job of one store, newest first. Any number of threads may ask."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._ended: dict[str, Job] = {}
        self._asked: dict[str, JobSpec] = {}  # specs of jobs that have not ended
        self._warned, self._warned_at = "", -_ROOM_SECONDS

    def warning(self) -> str:
        """Return the warning of a nearly full disk; measured now and then."""
        now = time.monotonic()
        if now >= self._warned_at + _ROOM_SECONDS:
            self._warned_at = now
            try:
                self._warned = self._backend.store.room().warning
            except (
                MusterError
            ) as error:  # such as a service of an older release: the jobs are shown nevertheless
                self._warned = f"how much room the store has is not known: {error}"
        return self._warned

    def dags(self) -> set[str]:
        """Return the Dags of which a job is known."""
        return {job.dag_id for job in self.jobs() if job.dag_id}

    def ends(self, *, dag_id: str = "", run_id: str = "", runs: int = 20) -> list[TaskEnd]:
        """Return the ends of tasks that no job records, newest first; `runs` is the number of runs, the newest."""
        return self._backend.store.ledger.task_ends(dag_id=dag_id, run_id=run_id, runs=runs)

    def noted(self) -> Mapping[tuple[str, str], JobState]:
        """See :func:`muster.volumes.runs.noted`."""
        return noted(self._backend.store.ledger)

    def one(self, job_id: str) -> Job:
        """Return one job as it is now. :raises NotFound: there is none. :raises Corrupt: it cannot be read."""
        known = self._ended.get(job_id)
        if known is not None:
            return known
        ledger = self._backend.store.ledger
        return Job(job_id=job_id, status=self._backend.status(job_id), spec=ledger.spec(job_id))

    def jobs(self) -> list[Job]:
        """Return every job, newest first, as it was recorded last; see :meth:`now`."""
        ledger = self._backend.store.ledger
        names = ledger.jobs()
        asked = [job_id for job_id in names if job_id not in self._ended]
        if not asked and len(names) == len(self._ended):
            return [*self._ended.values()]  # newest first, as they were found
        statuses = {status.job_id: status for status in ledger.statuses(asked)}
        self._asked |= ledger.specs([job_id for job_id in asked if job_id not in self._asked])
        found = [
            job
            for job_id in reversed(names)
            if (job := self._ended.get(job_id) or self._recorded(ledger, job_id, statuses.get(job_id)))
        ]
        self._ended = {job.job_id: job for job in found if job.ended}  # drops jobs that gc deleted
        self._asked = {job.job_id: job.spec for job in found if job.spec and not job.ended}
        return found

    def _recorded(self, ledger: Ledger, job_id: str, status: JobStatus | None) -> Job | None:
        spec = self._asked.get(job_id)
        if status is not None and spec is not None:
            return Job(job_id=job_id, status=status, spec=spec)
        try:  # an error is shown with the job
            return Job(job_id=job_id, status=ledger.status(job_id), spec=ledger.spec(job_id))
        except NotFound:
            return None  # gc deleted it
        except MusterError as error:
            return Job(job_id=job_id, error=str(error))

    def now(self, jobs: Sequence[Job]) -> list[Job]:
        """Update jobs that have not ended: only the backend knows why one waits and whether it is alive."""
        live = self._backend.statuses(job.job_id for job in jobs if job.status and not job.ended)
        return [replace(job, status=live.get(job.job_id, job.status)) for job in jobs]
