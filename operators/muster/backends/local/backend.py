"""The backend of one machine: jobs and deployments as processes, a store in a folder."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from functools import cached_property
from typing import TYPE_CHECKING

from muster.backends.jobs.checks import Resolve, from_environment
from muster.backends.local.jobs import LocalJobs
from muster.backends.local.machine import Machine
from muster.backends.local.places import Places
from muster.backends.local.processes import ranks
from muster.core.cancelling import UNKNOWN
from muster.core.job import JobSpec
from muster.core.settings import Settings
from muster.core.status import JobEvent, JobStatus
from muster.core.verdict import Verdict
from muster.volumes.folder import FolderStore
from muster.volumes.protocols import LocalStore

if TYPE_CHECKING:
    from muster.backends.releases.deployments import Deployments


class LocalBackend:
    """Where jobs and deployments run on one machine; see :class:`muster.backends.base.Backend`.

    :param machine: what there is to claim; looked up where it is not given.
    :param resolve: returns the values of secrets that this process has, KeyError for others.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        machine: Machine | None = None,
        resolve: Resolve = from_environment,
    ) -> None:
        self._settings = settings
        settings.make_home()
        self._store = FolderStore(settings.store, compare=settings.compare)
        self._jobs = LocalJobs(settings, self._store, machine=machine, resolve=resolve)

    @property
    def store(self) -> LocalStore:
        """The store below MUSTER_HOME."""
        return self._store

    def check(self, job: JobSpec) -> tuple[str, ...]:
        """Refuse at once what can never run here, and return warnings about what runs otherwise."""
        return self._jobs.check(job)

    def submit(self, job: JobSpec, *, job_id: str, owner: str | None = None) -> None:
        """Start every replica or none, now or when there is room; the same job_id twice is one job."""
        self._jobs.submit(job, job_id=job_id, owner=owner)

    def status(self, job_id: str) -> JobStatus:
        """Report the job as it is now; never wait."""
        return self._jobs.status(job_id)

    def statuses(self, job_ids: Iterable[str]) -> dict[str, JobStatus]:
        """Report many jobs at once; leave out what cannot be found or read."""
        return self._jobs.statuses(job_ids)

    def watch(self, job_id: str, *, after: str | None = None) -> AsyncIterator[JobEvent]:
        """Yield lines and changes of state until the job has ended; its end is the last event."""
        return self._jobs.watch(job_id, after=after)

    def cancel(
        self, job_id: str, *, owner: str | None = None, wait: bool = True, why: Verdict = UNKNOWN
    ) -> None:
        """End the job and leave no process; nothing happens for another owner's job."""
        self._jobs.cancel(job_id, owner=owner, wait=wait, why=why)

    def ranks(self, job_id: str) -> list[int]:
        """Return the pids of a job's ranks that run now, in the order of the ranks; those of this user."""
        return ranks(Places(self._settings.home).mark(job_id))

    def sweep(self) -> tuple[str, ...]:
        """Nothing: a supervisor leaves nothing, and where it was killed, whoever asks for its job's end sees to it."""
        return ()

    def close(self) -> None:
        """Nothing is held open."""

    @cached_property
    def deployments(self) -> Deployments:
        """The deployments of this machine."""
        from muster.backends.local.serving.platform import local_deployments  # jobs need none of it

        return local_deployments(self._settings, self._store)
