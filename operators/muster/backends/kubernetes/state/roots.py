"""The one object of a job that owns all others: its JobSet, or its Job where the cluster has no JobSets."""

from __future__ import annotations

from collections.abc import Mapping

from muster.backends.kubernetes import labels
from muster.backends.kubernetes.api.client import Client
from muster.backends.kubernetes.api.kinds import JOB, JOB_SET, Document, Kind, kind_of
from muster.backends.kubernetes.api.refusals import NotServed
from muster.backends.kubernetes.manifests.pods import mounted_secret
from muster.core.errors import Conflict
from muster.core.job import JobSpec


def root_kinds(job: JobSpec) -> tuple[Kind, ...]:
    """What a job's root may be, which is one of them."""
    alone = job.replicas == 1
    return (JOB_SET, JOB) if alone else (JOB_SET,)


def find_root(client: Client, job: JobSpec, job_id: str, *, namespace: str) -> Document | None:
    """Return a job's root. :raises Conflict: an object of that name is not of this job."""
    name = labels.object_name(job_id)
    for kind in root_kinds(job):
        try:
            found = client.get(kind, name, namespace=namespace)
        except NotServed:
            continue
        if found is None:
            continue
        if (found["metadata"].get("labels") or {}).get(labels.JOB) != job_id:
            raise Conflict(
                f"{kind.name} {name} in namespace {namespace} is not of job {job_id}, and stands in its way: "
                "delete it if it is left over"
            )
        return found
    return None


def delete_root(client: Client, root: Mapping[str, object]) -> bool:
    """Begin to delete a root and all it owns; whether that was not begun yet.

    One of the same name that was made since is left alone.

    It stays until its Jobs and their pods are gone. Were it to go first, then a JobSet controller that has not heard of it yet
    would make its Jobs anew, under the same names: a collector that is as late takes the new for the old, and
    never takes the pods of the old away. An API server that was restarted makes both late, by up to half a minute.
    """
    metadata = root["metadata"]
    assert isinstance(metadata, Mapping)
    return not metadata.get("deletionTimestamp") and client.delete(
        kind_of(root),
        str(metadata["name"]),
        namespace=str(metadata["namespace"]),
        propagation="Foreground",
        uid=str(metadata["uid"]),
    )


def secret_of(root: Document) -> str:
    """Return the name of the Secret that a root's pods wait for."""
    spec = root["spec"]
    for role in spec.get("replicatedJobs") or ():
        spec = role["template"]["spec"]
    return mounted_secret(spec["template"])


def attempt_of(root: Document) -> int:
    """Return the attempt that a root was made for."""
    return int(root["metadata"]["labels"][labels.ATTEMPT])
