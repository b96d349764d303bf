"""The client's side of the job ledger."""

from __future__ import annotations

import os
from collections.abc import Sequence

from muster.core.job import JobSpec
from muster.core.names import check_job_id
from muster.core.status import JobStatus
from muster.volumes.service.connection import Connection
from muster.volumes.service.messages import (
    CURSOR,
    MOST_SPECS,
    Answer,
    Count,
    Names,
    NewJob,
    Ownership,
    Specs,
    Statuses,
)


class ServiceLedger:
    """The job ledger behind a store service; see :class:`muster.volumes.protocols.Ledger`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def create(self, job_id: str, spec: JobSpec, *, owner: str | None = None) -> bool:
        """Enter a job; False where it was there already with the same spec.

        Where the service was away meanwhile, False may also mean that the first of several tries did it.
        """
        return self._connection.send("PUT", job_path(job_id), Answer, NewJob(spec=spec, owner=owner)).yes

    def spec(self, job_id: str) -> JobSpec:
        """Return what was asked."""
        return self._connection.get(f"{job_path(job_id)}/spec", JobSpec)

    def status(self, job_id: str) -> JobStatus:
        """Return what was last recorded."""
        return self._connection.get(f"{job_path(job_id)}/status", JobStatus)

    def statuses(self, job_ids: Sequence[str]) -> list[JobStatus]:
        """Return what was last recorded of many jobs, in one request; those that gc took are left out."""
        names = Names(names=tuple(map(check_job_id, job_ids)))
        return list(self._connection.send("POST", "/v1/statuses", Statuses, names).statuses)

    def specs(self, job_ids: Sequence[str]) -> dict[str, JobSpec]:
        """Return what was asked for by many jobs, in a few requests; those that cannot be found or read are left out."""
        names, found = [check_job_id(job_id) for job_id in job_ids], dict[str, JobSpec]()
        for first in range(0, len(names), MOST_SPECS):
            asked = Names(names=tuple(names[first : first + MOST_SPECS]))
            found |= self._connection.send("POST", "/v1/specs", Specs, asked).specs
        return found

    def update(self, status: JobStatus) -> None:
        """Record a status; one that comes after the job's end, or after all replicas sealed, is dropped."""
        self._connection.tell("PUT", f"{job_path(status.job_id)}/status", status)

    def own(self, job_id: str, *, owner: str, expected: str | None) -> bool:
        """Set the owner if it is `expected` now."""
        wanted = Ownership(owner=owner, expected=expected)
        if self._connection.send("POST", f"{job_path(job_id)}/owner", Answer, wanted).yes:
            return True
        # An answer that was lost may have been a yes: then a second try finds us the owner.
        return owner != expected and self.status(job_id).owner == owner

    def append(self, job_id: str, data: bytes, *, request: str | None = None) -> None:
        """Add whole lines to the log, once, however often it has to be sent.

        :param request: a name for these lines: whoever else adds lines under it adds nothing.
        """
        path = f"{job_path(job_id)}/log"
        if data:
            self._connection.request("POST", path, query={"request": request or new_request()}, content=data)

    def read(self, job_id: str, *, after: int = 0, limit_bytes: int = 1 << 20) -> tuple[bytes, int]:
        """Return whole lines from offset `after`, and the offset after them."""
        query = {"after": after, "limit_bytes": limit_bytes}
        answer = self._connection.request("GET", f"{job_path(job_id)}/log", query=query)
        return answer.content, int(answer.headers[CURSOR])

    def log_bytes(self, job_id: str) -> int:
        """How long the log is now."""
        return self._connection.get(f"{job_path(job_id)}/log/bytes", Count).count

    def jobs(self) -> list[str]:
        """Every job_id, oldest first."""
        return list(self._connection.get("/v1/jobs", Names).names)


def job_path(job_id: str) -> str:
    """Where the service has a job. :raises SpecError: it is no job_id."""
    return f"/v1/jobs/{check_job_id(job_id)}"


def new_request() -> str:
    """A name for one call: sent again, the service knows it by it."""
    return os.urandom(8).hex()
