"""The page's list of jobs: ended ones are read once, others each time."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from muster.airflow.plugin.task import task
from muster.backends.base import Backend
from muster.core.errors import MusterError, NotFound
from muster.core.job import JobSpec
from muster.core.status import JobState, JobStatus
from muster.core.text import as_shown
from muster.core.wire import plain
from muster.volumes.protocols import Ledger

MADE = 3
VALIDATION = "muster_validate:validate"  # what a ValidateOperator's job runs
LOG_BYTES = 128 << 10
ROOM_SECONDS = 30.0
UNREADABLE = "unreadable"
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
        self._warned, self._warned_at = "", -ROOM_SECONDS

    def listed(
        self, *, permitted: Callable[[str], bool], state: str, text: str, offset: int, limit: int
    ) -> dict[str, Any]:
        """Return one page of the jobs whose Dag `permitted` admits, and their numbers by state.

        :param state: only jobs in this state; `text`: only jobs with it in their id, name, task or run.
        """
        wanted = text.lower()
        seen = [job for job in self._jobs() if permitted(job.dag_id) and wanted in job.words]
        chosen = [job for job in seen if state in ("", job.state)]
        page = self._now(chosen[offset : offset + limit])
        return {
            "jobs": [row(job) for job in page],
            "total": len(chosen),
            "states": Counter(job.state for job in seen),
            "warning": self._warning(),
        }

    def _warning(self) -> str:
        """Return the warning of a nearly full disk; measured now and then."""
        now = time.monotonic()
        if now >= self._warned_at + ROOM_SECONDS:
            self._warned_at = now
            try:
                self._warned = self._backend.store.room().warning
            except (
                MusterError
            ) as error:  # such as a service of an older release: the jobs are shown nevertheless
                self._warned = f"how much room the store has is not known: {error}"
        return self._warned

    def one(self, job_id: str) -> Job:
        """Return one job as it is now. :raises NotFound: there is none. :raises Corrupt: it cannot be read."""
        known = self._ended.get(job_id)
        if known is not None:
            return known
        ledger = self._backend.store.ledger
        return Job(job_id=job_id, status=self._backend.status(job_id), spec=ledger.spec(job_id))

    def _jobs(self) -> Iterable[Job]:
        ledger = self._backend.store.ledger
        names = ledger.jobs()
        asked = [job_id for job_id in names if job_id not in self._ended]
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

    def _now(self, jobs: Sequence[Job]) -> list[Job]:
        """Update jobs that have not ended: only the backend knows why one waits and whether it is alive."""
        live = self._backend.statuses(job.job_id for job in jobs if job.status and not job.ended)
        return [replace(job, status=live.get(job.job_id, job.status)) for job in jobs]


def row(job: Job) -> dict[str, Any]:
    """Return one line of the list, as JSON values. Times are seconds since the epoch."""
    return {
        "job_id": job.job_id,
        "state": job.state,
        "error": job.error,
        **_asked(job.spec),
        **_became(job.status),
        "failed_expectations": failed_expectations(job),
    }


def failed_expectations(job: Job) -> str:
    """Return the failures of a validation, whose job succeeds nevertheless; empty for other jobs."""
    result = job.status.result if job.status else None
    if result is None or job.spec is None or job.spec.roles[0].entrypoint != VALIDATION:
        return ""
    failed, of = (int(result.metrics.get(name, 0)) for name in ("failed", "expectations"))
    return f"the data failed: {failed} of {of} expectations" if failed else ""


def _asked(spec: JobSpec | None) -> dict[str, Any]:
    if spec is None:
        return {}
    return {
        "name": spec.name,
        "origin": plain(spec.origin),
        **task(spec.origin),
        "queue": spec.queue,
        "priority": spec.priority,
        "ranks": spec.world_size,
        "gpus": sum(role.replicas * role.resources.gpus for role in spec.roles),
    }


def _became(status: JobStatus | None) -> dict[str, Any]:
    if status is None:
        return {}
    return {
        "submitted": status.submitted,
        "started": status.started,
        "ended": status.ended,
        "reason": status.reason,
        "restarts": status.restarts,
        "alive": status.alive,
        "verdict": plain(status.verdict),
        "progress": {
            name: {"text": str(number), **plain(number)} for name, number in status.progress.items()
        },
        "links": dict(status.links),
        **_made(status),
    }


def _made(status: JobStatus) -> dict[str, Any]:
    """Return the first few versions of a job, and the number of all."""
    outputs = status.result.outputs.values() if status.result else ()
    made = [address for addresses in outputs for address in addresses]
    return {"made": made[:MADE], "made_in_all": len(made)}


def detail(job: Job) -> dict[str, Any]:
    """Return everything that the page shows of one job; without env variables and secrets."""
    assert job.spec is not None
    assert job.status is not None
    result = job.status.result
    return {
        **row(job),
        "image": job.spec.image,
        "launcher": job.spec.launcher.value,
        "roles": plain(job.spec.roles),
        "inputs": {name: [v.address for v in given.versions] for name, given in job.spec.inputs.items()},
        "outputs": {name: list(result.outputs.get(name, ())) if result else [] for name in job.spec.outputs},
        "writes": {name: output.volume for name, output in job.spec.outputs.items()},
        "params": plain(job.spec.params),
        "metrics": dict(result.metrics) if result else {},
        "run_timeout_seconds": job.spec.run_timeout_seconds,
    }


def log(ledger: Ledger, job_id: str, *, after: int | None) -> dict[str, Any]:
    """Return part of a job's log: its end, or the part after byte `after`.

    :return: the text, the byte after it, the byte before which lines were left out, and the length.
    """
    size = ledger.log_bytes(job_id)
    start = max(0, size - LOG_BYTES) if after is None else min(after, size)
    data, end = ledger.read(job_id, after=start, limit_bytes=LOG_BYTES)
    if after is None and start:  # it begins in the middle of a line
        _, _, data = data.partition(b"\n")
    return {
        "text": as_shown(data.decode("utf-8", "replace").replace("\r\n", "\n")),
        "next": end,
        "skipped_bytes": end - len(data) if after is None else 0,
        "bytes": size,
    }
