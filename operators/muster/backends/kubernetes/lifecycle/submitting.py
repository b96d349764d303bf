"""Submits jobs: whatever is done twice, by two at once, or cut off at any step, it is one job, whole or not there.

::

    check → ledger.create → attempt → worker, leases → token → JobSet or Job → its PodGroup and Secret

Nothing runs before the last step: pods wait for the Secret. All processes that submit a job at once begin one
attempt. Another attempt begins only after pods have asked for the one before and its objects are gone. So the
JobSet is of the attempt that counts, no matter which process creates it. A job whose Secret exists is complete, and
is left as it is: its code and inputs need not be available any more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from secrets import token_hex
from typing import Any

from muster.backends.jobs.checks import Resolve, lease_inputs, secret_values
from muster.backends.jobs.ending import is_decided
from muster.backends.kubernetes import labels
from muster.backends.kubernetes.api.client import Client
from muster.backends.kubernetes.api.kinds import POD_GROUP, SECRET, Document, kind_of, owned_by
from muster.backends.kubernetes.cluster.discovery import Survey
from muster.backends.kubernetes.cluster.facts import Cluster
from muster.backends.kubernetes.cluster.feasibility import check_job, check_place, choose_queue, pod_sets
from muster.backends.kubernetes.manifests.gangs import Documents, documents
from muster.backends.kubernetes.manifests.pods import OWN_SECONDS
from muster.backends.kubernetes.manifests.wiring import Submission
from muster.backends.kubernetes.site import ClusterSite
from muster.backends.kubernetes.state.sight import attempt_of, delete_root, find_root, secret_of
from muster.core.errors import BackendError, CannotSchedule, Conflict, SpecError
from muster.core.job import DAY_SECONDS, JobSpec, Role
from muster.core.resources import Resources
from muster.core.status import JobStatus
from muster.images.worker_archive import zipapp
from muster.volumes.service.client import ServiceStore

# A job that was preempted may wait again for as long as it has to; its token counts only while it is current.
_TOKEN_SECONDS = 30 * DAY_SECONDS
_GONE_SECONDS, _PAUSE_SECONDS = 60.0, 0.2  # a root goes after its pods, and those have their grace
_NOT_MADE, _DOCTOR = "check", "doctor"  # job_ids of what is tried out alone


@dataclass(eq=False)
class Submitter:
    """Checks jobs, and makes their objects.

    :param resolve: returns the values of secrets that this process has, KeyError for others.
    :param size: returns with how many replicas an elastic gang is submitted; None for all.
    """

    client: Client
    _: KW_ONLY
    site: ClusterSite
    store: ServiceStore
    survey: Survey
    resolve: Resolve
    size: Callable[[JobSpec, str], int | None]

    def check(self, job: JobSpec) -> tuple[str, ...]:
        """Refuse what can never run; return warnings. Nothing is made, in the cluster or in the ledger.

        :raises SpecError: what it asks for cannot be had here, or the API server refuses its objects.
        :raises Forbidden: this account may not make them.
        """
        if job.interpreter is not None:
            raise CannotSchedule(
                f"job {job.name} is to run with {job.interpreter.path}, and in a cluster an image is a container: "
                "submit it without an interpreter"
            )
        try:
            return self._checked(job, self.survey.cluster())
        except SpecError:  # what was missing a moment ago may have been made meanwhile
            return self._checked(job, self.survey.cluster(younger_than=0.0))

    def _checked(self, job: JobSpec, cluster: Cluster) -> tuple[str, ...]:
        check_place(cluster, claim=self.site.claim)
        if job.elastic and not cluster.job_set:
            raise CannotSchedule(
                f"job {job.name} is a gang of up to {job.replicas} replicas, and this cluster has no JobSets: "
                "install JobSet 0.12 or newer, or give it one replica"
            )
        queue = choose_queue(cluster, job.queue or self.site.queue, gang=job.replicas > 1)
        made = self._written(job, cluster, job_id=_NOT_MADE)
        least = self._written(job.sized(job.least), cluster, job_id=_NOT_MADE)
        warnings = check_job(
            cluster,
            pod_sets(least.owner, job),
            queue=queue,
            priority=job.priority,
            partial_starts=self.site.partial_starts,
        )
        try_out(self.client, made)
        return warnings

    def submit(self, job: JobSpec, status: JobStatus) -> None:
        """Make the objects of a job that is entered, as far as they are not there.

        :param status: what is recorded of it.
        :raises BackendError: objects of an attempt that is over do not go.
        """
        job_id = status.job_id
        deadline = time.monotonic() + job.grace_seconds + OWN_SECONDS + _GONE_SECONDS
        while not is_decided(status) and not self.go_on(job, job_id):
            if time.monotonic() > deadline:
                raise BackendError(
                    f"job {job_id}: objects of an attempt that is over stay on the cluster; see "
                    f"`kubectl get jobsets,jobs,pods --selector={labels.JOB}={job_id}`, then submit it again"
                )
            time.sleep(_PAUSE_SECONDS)  # the pace of asking, until they are deleted or the deadline above
            status = self.store.ledger.status(job_id)

    def go_on(self, job: JobSpec, job_id: str) -> bool:
        """Make what there is not of a job's current attempt, without waiting.

        :return: whether it is all there; else something of an earlier attempt is still in the way.
        """
        attempt, taken = self.store.attempt(job_id)  # before the look: what pods have asked for was made
        found = find_root(self.client, job, job_id, namespace=self.site.namespace)
        with suppress(Conflict):  # another of us was quicker, or all have sealed: look again
            if found is not None:
                return self._stands(job, job_id, found, attempt=attempt, taken=taken)
            if taken or not attempt:
                attempt = self.store.begin(job_id, after=attempt, replicas=self.size(job, job_id))
            self._make(job, job_id, attempt)
            return True
        return False

    def _stands(self, job: JobSpec, job_id: str, root: Document, *, attempt: int, taken: bool) -> bool:
        """Whether a root is what is wanted: what it lacks is added, and one that is over goes."""
        if root["metadata"].get("deletionTimestamp"):
            return False
        if taken and attempt_of(root) <= attempt:  # a gang that is started again begins attempts, too
            return True
        if attempt_of(root) < attempt:
            delete_root(self.client, root)
            return False
        if not self._is_whole(root):
            self._add(self._documents(job, job_id, attempt_of(root), secret=secret_of(root)), root)
        return True

    def _is_whole(self, root: Document) -> bool:
        """Whether a root's Secret, which is made last, is there. This takes no right to read Secrets."""
        secret = {"name": secret_of(root), "namespace": self.site.namespace}
        try:
            self.client.create(SECRET.document(secret), dry_run=True)
        except Conflict:
            return True
        return False

    def _make(self, job: JobSpec, job_id: str, attempt: int) -> None:
        """Make a root and what it owns. :raises Conflict: there is one."""
        self.store.equip(job_id, worker=zipapp())
        lease_inputs(job, self.store, job_id=job_id)
        # Each root has a Secret of its own: that of one which was deleted may be there for a while.
        secret = f"{labels.secret_name(job_id)}-{token_hex(3)}"
        made = self._documents(job, job_id, attempt, secret=secret)
        self._add(made, self.client.create(made.owner))

    def _documents(self, job: JobSpec, job_id: str, attempt: int, *, secret: str) -> Documents:
        seconds = job.queue_timeout_seconds + job.run_timeout_seconds + _TOKEN_SECONDS
        token = self.store.token(job_id, attempt=attempt, lifetime_seconds=seconds)
        if job.elastic:
            job = job.sized(self.store.size(job_id) or job.replicas)
        return self._written(
            job, self.survey.cluster(), job_id=job_id, attempt=attempt, token=token, secret=secret
        )

    def _written(self, job: JobSpec, cluster: Cluster, *, job_id: str, **how: Any) -> Documents:
        wanted, values = job.queue or self.site.queue, secret_values(job, self.resolve)
        return _written(job, cluster, site=self.site, wanted=wanted, job_id=job_id, values=values, **how)

    def _add(self, made: Documents, owner: Document) -> None:
        """Make what a root owns. :raises Conflict: a PodGroup is there that goes with a root of before."""
        for document in made.owned:
            try:
                self.client.create(owned_by(document, owner))
            except Conflict:  # the name is its job's own: it is there already
                if document["kind"] == POD_GROUP.name and not self._is_owned(document, owner):
                    raise

    def _is_owned(self, document: Document, owner: Document) -> bool:
        metadata = document["metadata"]
        found = self.client.get(kind_of(document), metadata["name"], namespace=metadata["namespace"])
        owners = (found or {}).get("metadata", {}).get("ownerReferences") or ()
        return any(each["uid"] == owner["metadata"]["uid"] for each in owners)


def try_out(client: Client, made: Documents) -> None:
    """Send the objects of a job as a dry run, to the API server and its webhooks.

    :raises SpecError: something of it is refused; the message says by whom.
    :raises Forbidden: this account may not make it.
    :raises Unreachable: a webhook does not answer.
    """
    for document in (made.owner, *made.owned):
        with suppress(Conflict):  # another job has that name; the real objects get another
            client.create(document, dry_run=True)


def rehearse(client: Client, cluster: Cluster, *, site: ClusterSite) -> None:
    """Try out a gang of two small replicas, and raise what :func:`try_out` does."""
    role = Role(replicas=2, entrypoint="doctor:doctor", resources=Resources(cpus=0.1, memory_gib=0.0625))
    job = JobSpec(name=_DOCTOR, image=_DOCTOR, image_digest="b3:" + 64 * "0", roles=(role,))
    wanted = site.queue or min(cluster.queues, default=None)
    try_out(client, _written(job, cluster, site=site, wanted=wanted, job_id=_DOCTOR))


def _written(
    job: JobSpec,
    cluster: Cluster,
    *,
    wanted: str | None,
    token: str = "",
    values: Mapping[str, str] | None = None,
    **how: Any,
) -> Documents:
    """Write a job as what the cluster is to make. :param wanted: the queue, if any is named. :param how: of :class:`Submission`."""
    queue = choose_queue(cluster, wanted, gang=job.replicas > 1)
    submission = Submission(job=job, cluster=cluster, queue=None if queue is None else queue.name, **how)
    return documents(submission, token=token, values=values)
