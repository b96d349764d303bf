"""Ends jobs on a cluster without success; see :mod:`muster.backends.jobs.ending`.

What the store service has committed, or is about to, stands.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial

from muster.backends.jobs.ending import decide, record
from muster.backends.kubernetes.api.client import Client
from muster.backends.kubernetes.api.kinds import Document
from muster.backends.kubernetes.site import ClusterSite
from muster.backends.kubernetes.state.observe import ObservedJob, merged
from muster.backends.kubernetes.state.seen import seconds
from muster.backends.kubernetes.state.sight import Sight, delete_root, find_root
from muster.core.job import JobSpec
from muster.core.status import JobState, JobStatus
from muster.core.verdict import Verdict
from muster.volumes.service.client import ServiceStore

# A node that is lost never says that its pods have ended. So long after their grace they count as ended:
# what they still write is fenced.
_GIVEN_UP_SECONDS = 30.0


class JobEnding:
    """Brings jobs to the end that they have come to."""

    def __init__(self, client: Client, *, site: ClusterSite, store: ServiceStore, sight: Sight) -> None:
        self._client = client
        self._site = site
        self._store = store
        self._sight = sight

    def end(
        self, job: JobSpec, status: JobStatus, verdict: Verdict, *, observed: ObservedJob | None = None
    ) -> JobStatus:
        """Write down why a job ends, and end it as far as that goes without waiting."""
        self.decide(status, verdict.going_on(job.origin.again), observed=observed)
        return self.go_on(job, status.job_id)

    def decide(
        self,
        status: JobStatus,
        verdict: Verdict,
        *,
        observed: ObservedJob | None = None,
        owner: str | None = None,
    ) -> bool:
        """Write down why a job ends. From here on it does, unless all of its replicas have sealed.

        :param owner: write it only while this one owns the job.
        :return: False where another one owns it by now, and nothing was written.
        """
        noted = status if observed is None else merged(status, observed)
        # Only the store service writes down that it commits, and whatever it does not commit comes to its end here.
        state = status.state if noted.state is JobState.COMMITTING else noted.state
        return decide(self._store.ledger, replace(noted, state=state), verdict, owner=owner)

    def go_on(self, job: JobSpec, job_id: str) -> JobStatus:
        """Do what is left of a job's end, and return what is recorded of it now. Idempotent, and does not wait.

        A job that has no verdict and has not ended is left alone.
        """
        status = self._store.ledger.status(job_id)
        if not status.state.ended and (status.verdict is None or status.state is JobState.COMMITTING):
            return status
        self.clear(job, job_id)
        if status.state.ended or self.running(job_id):
            return status
        return self._record(status)

    def clear(self, job: JobSpec, job_id: str) -> bool:
        """Begin to delete a job's objects; whether that was not begun yet."""
        root = find_root(self._client, job, job_id, namespace=self._site.namespace)
        return root is not None and delete_root(self._client, root)

    def running(self, job_id: str) -> list[str]:
        """Return the names of the pods that have not ended, without those on nodes that are given up."""
        pods = self._sight.running(job_id)
        return [pod["metadata"]["name"] for pod in pods if not self._is_given_up(pod)]

    def _is_given_up(self, pod: Document) -> bool:
        due = seconds(pod["metadata"].get("deletionTimestamp"))  # it has its grace until then
        return due is not None and time.time() > due + _GIVEN_UP_SECONDS

    def _record(self, status: JobStatus) -> JobStatus:
        """Record the end. Of several of us the first wins, and all say the same."""
        job_id, ledger = status.job_id, self._store.ledger
        assert status.verdict is not None
        append = partial(ledger.append, request="verdict")
        record(ledger, status, status.verdict, append=append, now=time.time)
        self._store.release(job_id)
        return ledger.status(job_id)
