"""Says whether a job can run on the cluster, before anything of it is made there or in the ledger."""

from __future__ import annotations

from muster.backends.jobs.checks import Resolve, secret_values
from muster.backends.kubernetes.api.client import Client
from muster.backends.kubernetes.cluster.facts import Cluster
from muster.backends.kubernetes.cluster.feasibility import check_job, check_place, choose_queue, pod_sets
from muster.backends.kubernetes.cluster.survey import Survey
from muster.backends.kubernetes.lifecycle.rehearsal import try_out
from muster.backends.kubernetes.manifests.gangs import Documents, documents
from muster.backends.kubernetes.manifests.wiring import Submission
from muster.backends.kubernetes.site import ClusterSite
from muster.core.errors import CannotSchedule, SpecError
from muster.core.job import JobSpec
from muster.volumes.service.client import ServiceStore

_NOBODY = "check"


class Admission:
    """Checks jobs, and writes them as what the cluster is to make.

    :param resolve: returns the values of secrets that this process has, KeyError for others.
    """

    def __init__(
        self, client: Client, *, site: ClusterSite, store: ServiceStore, survey: Survey, resolve: Resolve
    ) -> None:
        self._client = client
        self._site = site
        self._store = store
        self._survey = survey
        self._resolve = resolve

    def check(self, job: JobSpec) -> tuple[str, ...]:
        """Refuse what can never run; return warnings. Nothing is made.

        :raises SpecError: what it asks for cannot be had here, or the API server refuses its objects.
        :raises Forbidden: this account may not make them.
        """
        if job.interpreter is not None:
            raise CannotSchedule(
                f"job {job.name} is to run with {job.interpreter.path}, and in a cluster an image is a container: "
                "submit it without an interpreter"
            )
        try:
            return self._checked(job, self._survey.cluster())
        except SpecError:  # what was missing a moment ago may have been made meanwhile
            return self._checked(job, self._survey.cluster(younger_than=0.0))

    def documents(
        self, job: JobSpec, *, job_id: str, attempt: int, token: str, secret: str = ""
    ) -> Documents:
        """Write a job as the objects that are to be made; see :func:`~.gangs.documents`."""
        cluster = self._survey.cluster()
        return self._documents(job, cluster, job_id=job_id, attempt=attempt, token=token, secret=secret)

    def _documents(
        self, job: JobSpec, cluster: Cluster, *, job_id: str, attempt: int, token: str, secret: str = ""
    ) -> Documents:
        queue = choose_queue(cluster, job.queue or self._site.queue, gang=job.replicas > 1)
        submission = Submission(
            job=job,
            job_id=job_id,
            attempt=attempt,
            site=self._site,
            cluster=cluster,
            queue=None if queue is None else queue.name,
            secret=secret,
        )
        return documents(
            submission,
            token=token,
            values=secret_values(job, self._resolve),
            override=job.pod_override or None,
        )

    def _checked(self, job: JobSpec, cluster: Cluster) -> tuple[str, ...]:
        check_place(cluster, claim=self._site.claim)
        if job.elastic and not cluster.job_set:
            raise CannotSchedule(
                f"job {job.name} is a gang of up to {job.replicas} replicas, and this cluster has no JobSets: "
                "install JobSet 0.12 or newer, or give it one replica"
            )
        queue = choose_queue(cluster, job.queue or self._site.queue, gang=job.replicas > 1)
        made = self._documents(job, cluster, job_id=_NOBODY, attempt=1, token="")
        least = self._documents(job.sized(job.least), cluster, job_id=_NOBODY, attempt=1, token="")
        warnings = check_job(
            cluster,
            pod_sets(least.owner, job),
            queue=queue,
            priority=job.priority,
            partial_starts=self._site.partial_starts,
        )
        try_out(self._client, made)
        return warnings
