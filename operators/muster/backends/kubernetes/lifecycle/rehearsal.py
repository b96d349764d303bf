"""Lets a cluster look at a gang that is not made: its API server, its webhooks, its quotas."""

from __future__ import annotations

from contextlib import suppress

from muster.backends.kubernetes.api.client import Client
from muster.backends.kubernetes.cluster.facts import Cluster
from muster.backends.kubernetes.cluster.feasibility import choose_queue
from muster.backends.kubernetes.manifests.gangs import Documents, documents
from muster.backends.kubernetes.manifests.wiring import Submission
from muster.backends.kubernetes.site import ClusterSite
from muster.core.errors import Conflict
from muster.core.job import JobSpec, Role
from muster.core.resources import Resources

_NOBODY = "doctor"
_IMAGE = "doctor"


def rehearse(client: Client, cluster: Cluster, *, site: ClusterSite) -> None:
    """Send what a gang of two small replicas is made of, as a dry run.

    :raises SpecError: something of it is refused; the message says by whom.
    :raises Forbidden: this account may not make it.
    :raises Unreachable: a webhook does not answer.
    """
    role = Role(replicas=2, entrypoint="doctor:doctor", resources=Resources(cpus=0.1, memory_gib=0.0625))
    job = JobSpec(name=_NOBODY, image=_IMAGE, image_digest="b3:" + 64 * "0", roles=(role,))
    queue = choose_queue(cluster, site.queue or _first(cluster), gang=True)
    submission = Submission(
        job=job,
        job_id=_NOBODY,
        attempt=1,
        site=site,
        cluster=cluster,
        queue=None if queue is None else queue.name,
    )
    try_out(client, documents(submission, token=""))


def try_out(client: Client, made: Documents) -> None:
    """Send the objects of a job as a dry run; raises what :func:`rehearse` does."""
    for document in (made.owner, *made.owned):
        with suppress(Conflict):  # another job has that name; the real objects get another
            client.create(document, dry_run=True)


def _first(cluster: Cluster) -> str | None:
    return min(cluster.queues, default=None)
