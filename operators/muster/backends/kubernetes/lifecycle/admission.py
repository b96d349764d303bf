"""Says whether a job can run on the cluster, before anything of it is made there or in the ledger."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from muster.backends.inputs import check_inputs
from muster.backends.kubernetes.api.client import Client
from muster.backends.kubernetes.cluster.facts import Cluster
from muster.backends.kubernetes.cluster.feasibility import check_job, check_place, choose_queue, pod_sets
from muster.backends.kubernetes.cluster.survey import Survey
from muster.backends.kubernetes.lifecycle.rehearsal import try_out
from muster.backends.kubernetes.manifests.gangs import Documents, documents
from muster.backends.kubernetes.site import ClusterSite
from muster.core.errors import ImageError, SpecError
from muster.core.job import JobSpec, SecretRef
from muster.volumes.service.client import ServiceStore

Resolve = Callable[[SecretRef], str]

_NOBODY = "check"
_REMEMBERED_SECONDS = 10.0


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
        self._last = threading.local()

    def check(self, job: JobSpec) -> tuple[str, ...]:
        """Refuse what can never run; return warnings. Nothing is made.

        :raises SpecError: what it asks for cannot be had here, or the API server refuses its objects.
        :raises Forbidden: this account may not make them.
        """
        try:
            warnings = self._checked(job, self._survey.cluster())
        except SpecError:  # what was missing a moment ago may have been made meanwhile
            warnings = self._checked(job, self._survey.cluster(younger_than=0.0))
        self._last.checked = job, warnings, time.monotonic()
        return warnings

    def checked(self, job: JobSpec) -> tuple[str, ...]:
        """Do what :meth:`check` does, unless this very job was checked a moment ago; and look into the store.

        :raises ImageError: the image's lock is not in the store.
        :raises NotFound: an input is not.
        """
        before, warnings, at = getattr(self._last, "checked", (None, (), 0.0))
        if before != job or time.monotonic() - at > _REMEMBERED_SECONDS:
            warnings = self.check(job)
        if not self._store.holds(job.image_digest):
            raise ImageError(
                f"image {job.image}: its lock {job.image_digest[:15]}… is not in the store; submit the job "
                "from the Dag again, which puts it there"
            )
        if job.code is not None and not self._store.holds(job.code):
            raise SpecError(f"job {job.name}: its code snapshot {job.code[:15]}… is not in the store")
        check_inputs(job, self._store)
        return tuple(warnings)

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
        return documents(
            job,
            job_id=job_id,
            attempt=attempt,
            site=self._site,
            cluster=cluster,
            queue=None if queue is None else queue.name,
            token=token,
            secret=secret,
            values=self._values(job),
            override=job.pod_override or None,
        )

    def _checked(self, job: JobSpec, cluster: Cluster) -> tuple[str, ...]:
        check_place(cluster, claim=self._site.claim)
        queue = choose_queue(cluster, job.queue or self._site.queue, gang=job.replicas > 1)
        made = self._documents(job, cluster, job_id=_NOBODY, attempt=1, token="")
        warnings = check_job(
            cluster,
            pod_sets(made.owner, job),
            queue=queue,
            priority=job.priority,
            partial_starts=self._site.partial_starts,
        )
        try_out(self._client, made)
        return warnings

    def _values(self, job: JobSpec) -> Mapping[str, str]:
        """Look up the secrets that lie in no Secret of the cluster. :raises SpecError: one is not here."""
        return {
            variable: self._value(variable, secret)
            for variable, secret in job.secrets.items()
            if secret.source != "kubernetes"
        }

    def _value(self, variable: str, secret: SecretRef) -> str:
        try:
            return self._resolve(secret)
        except KeyError as error:
            kind = "environment variable" if secret.source == "environment" else secret.source
            raise SpecError(
                f"secret {variable}: there is no {kind} {secret.name!r} here; set it where the job is submitted"
            ) from error
