"""The backend of a cluster: jobs as JobSets and Jobs, a store behind a service."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

from muster.backends.jobs.checks import Resolve
from muster.backends.kubernetes.api.client import Client
from muster.backends.kubernetes.cluster.survey import QUICK_SECONDS, Survey
from muster.backends.kubernetes.lifecycle.admission import Admission
from muster.backends.kubernetes.lifecycle.ending import Ending
from muster.backends.kubernetes.lifecycle.jobs import Jobs
from muster.backends.kubernetes.lifecycle.submitting import Submitter
from muster.backends.kubernetes.lifecycle.sweep import sweep
from muster.backends.kubernetes.site import ClusterSite
from muster.backends.kubernetes.state.sight import Sight
from muster.backends.releases.deployments import Deployments
from muster.core.cancelling import UNKNOWN
from muster.core.job import JobSpec
from muster.core.status import JobEvent, JobStatus
from muster.core.verdict import Verdict
from muster.volumes.service.client import ServiceStore


class KubernetesBackend:
    """Where jobs run on one namespace of a cluster; see :class:`muster.backends.base.Backend`.

    Nothing is asked of the cluster before the first call. It may be shared between threads, and follows
    the cluster with one watch a kind, however many jobs are asked about, from the first that is watched.

    :param deployments: where what is deployed is served: not on the cluster.
    :param resolve: returns the values of secrets that this process has, KeyError for others.
    """

    def __init__(
        self,
        client: Client,
        *,
        site: ClusterSite,
        store: ServiceStore,
        deployments: Deployments,
        resolve: Resolve,
    ) -> None:
        self._store = store
        self.deployments = deployments
        self._survey = Survey(client, site)
        self._quick = quick = client.patient(QUICK_SECONDS)
        self._sight = Sight(quick, site=site, survey=self._survey)
        self._ending = Ending(quick, site=site, store=store, sight=self._sight)
        self._admission = Admission(client, site=site, store=store, survey=self._survey, resolve=resolve)
        self._submitter = Submitter(client, site=site, store=store, admission=self._admission)
        self._jobs = Jobs(
            quick, site=site, store=store, survey=self._survey, sight=self._sight, ending=self._ending
        )

    @property
    def store(self) -> ServiceStore:
        """The store in front of the cluster's claim."""
        return self._store

    def close(self) -> None:
        """Follow the cluster no longer, and give the store's connections back."""
        self._sight.close()
        self._store.close()

    def check(self, job: JobSpec) -> tuple[str, ...]:
        """Refuse at once what can never run here; nothing is made."""
        return self._admission.check(job)

    def submit(self, job: JobSpec, *, job_id: str, owner: str | None = None) -> None:
        """Have every replica started or none, now or when there is room; the same job_id twice is one job."""
        self._submitter.submit(job, job_id=job_id, owner=owner)
        self._ending.go_on(job, job_id)  # it may have been cancelled meanwhile

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
        """End the job and leave no pod; nothing happens for another owner's job."""
        self._jobs.cancel(job_id, owner=owner, wait=wait, why=why)

    def sweep(self) -> tuple[str, ...]:
        """Delete what jobs that have ended left on the cluster; return which jobs."""
        return sweep(self._quick, sight=self._sight, jobs=self._jobs)
