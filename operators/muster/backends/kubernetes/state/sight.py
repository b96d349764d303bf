"""The objects of jobs on the cluster now: from the mirror while jobs are followed, else by request.

One object of a job owns all others, its root: its JobSet, or its Job where the cluster has no JobSets.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence

from muster.backends.kubernetes import labels
from muster.backends.kubernetes.api import kinds
from muster.backends.kubernetes.api.client import Client
from muster.backends.kubernetes.api.kinds import Document, Kind, kind_of
from muster.backends.kubernetes.api.refusals import NotServed
from muster.backends.kubernetes.cluster.discovery import Right, Survey, lacking, rules
from muster.backends.kubernetes.labels import JOB as JOB_LABEL
from muster.backends.kubernetes.labels import selector
from muster.backends.kubernetes.manifests.pods import mounted_secret
from muster.backends.kubernetes.site import ClusterSite
from muster.backends.kubernetes.state.mirror import Mirror
from muster.backends.kubernetes.state.seen import JobObjects, uid_of
from muster.core.errors import Conflict, Forbidden, Unreachable
from muster.core.job import JobSpec

_FIRST_SECONDS, _AGAIN_SECONDS = 30.0, 180.0
_OWNER_UID = "kueue.x-k8s.io/job-uid"  # of Workloads: the uid of what they stand for


class Sight:
    """Looks at jobs. Safe to share between threads."""

    def __init__(
        self,
        client: Client,
        *,
        site: ClusterSite,
        survey: Survey,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._site = site
        self._survey = survey
        self._clock = clock
        self._lock = threading.Lock()
        self._mirror: Mirror | None = None
        self._again = 0.0  # when one that has fallen silent may be begun anew

    def follow(self) -> Mirror:
        """Return the mirror of the namespace. The first call starts it; a later one restarts it where it is silent.

        :raises Forbidden: these credentials may not read what a mirror shows, and none was there before.
        :raises Unreachable: the API server did not show everything within half a minute.
        """
        with self._lock:
            if self._mirror is None:
                self._mirror = self._begin()
            elif self._mirror.is_deaf and self._clock() > self._again:
                self._again = self._clock() + _AGAIN_SECONDS
                try:
                    before, self._mirror = self._mirror, self._begin()
                except Forbidden as error:  # as an API server that starts does; the old one goes on trying
                    raise Unreachable(f"the API server forbids what it allowed before: {error}") from error
                before.close()
            return self._mirror

    def _begin(self) -> Mirror:
        self._survey.last()  # which kinds there are may be what has changed
        self._check_rights()
        mirror = Mirror(self._client, namespace=self._site.namespace, kinds=self._survey.kinds())
        try:
            mirror.wait(timeout_seconds=_FIRST_SECONDS)
        except BaseException:
            mirror.close()
            raise
        return mirror

    def _check_rights(self) -> None:
        """Ask for the rights before the watch begins: a watch that is refused would try again for ever."""
        namespace, there = self._site.namespace, self._survey.kinds()
        wanted = [Right(verb, kind) for kind in there for verb in ("list", "watch")]
        served = {(kind.api_version, kind.plural) for kind in there}
        missing = lacking(self._client, wanted, namespace=namespace, served=served)
        if missing:
            raise Forbidden(
                f"this account may not follow jobs in namespace {namespace}: give it a Role with {rules(missing)}"
            )

    def close(self) -> None:
        """End the mirror, if there is one."""
        with self._lock:
            if self._mirror is not None:
                self._mirror.close()
                self._mirror = None

    def seen(self, job: JobSpec, job_id: str) -> JobObjects:
        """Return what there is of a job: without a request where it is followed."""
        mirror = self._mirror  # another thread may close it
        return self.asked(job, job_id) if mirror is None else mirror.seen(job_id)

    def asked(self, job: JobSpec, job_id: str) -> JobObjects:
        """Return what the API server says there is of a job; and pods that ended badly, if they were seen before."""
        of_job = selector({JOB_LABEL: job_id})
        there = self._survey.kinds()
        found: list[Document] = []
        for kind in {*root_kinds(job), kinds.JOB, kinds.POD, kinds.POD_GROUP} & {*there}:
            found += self._find(kind, labels=of_job)
        root = JobObjects.of(found).root
        if root is not None and kinds.WORKLOAD in there:
            found += self._find(kinds.WORKLOAD, labels=selector({_OWNER_UID: root["metadata"]["uid"]}))
        found += self._events({uid_of(each) for each in found})
        return JobObjects.of([*found, *self._ended_badly(job_id, {uid_of(each) for each in found})])

    def roots(self) -> Sequence[Document]:
        """Return the JobSets and Jobs of all our jobs, but for those that a JobSet owns: they go with it."""
        if self._mirror is not None:
            return self._mirror.roots()
        there = {kinds.JOB, kinds.JOB_SET} & {*self._survey.kinds()}
        found = [each for kind in there for each in self._find(kind, labels=JOB_LABEL)]
        return [each for each in found if not each["metadata"].get("ownerReferences")]

    def workloads(self) -> Sequence[Document]:
        """Return every Workload of the namespace, if it is followed."""
        mirror = self._mirror
        return () if mirror is None else mirror.workloads()

    def running(self, job_id: str) -> Sequence[Document]:
        """Return the pods of a job that have not ended, as the API server knows them."""
        pods = self._find(kinds.POD, labels=selector({JOB_LABEL: job_id}))
        return [pod for pod in pods if (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")]

    def _find(self, kind: Kind, *, labels: str = "", fields: str = "") -> Sequence[Document]:
        return self._client.find(kind, namespace=self._site.namespace, labels=labels, fields=fields)

    def _events(self, about: set[str]) -> list[Document]:
        warnings = self._find(kinds.EVENT, fields="type=Warning") if about else ()
        return [event for event in warnings if (event.get("involvedObject") or {}).get("uid") in about]

    def _ended_badly(self, job_id: str, known: set[str]) -> list[Document]:
        mirror = self._mirror
        pods = mirror.seen(job_id).pods if mirror is not None else ()
        failed = [pod for pod in pods if (pod.get("status") or {}).get("phase") == "Failed"]
        return [pod for pod in failed if uid_of(pod) not in known]


def root_kinds(job: JobSpec) -> tuple[Kind, ...]:
    """What a job's root may be, which is one of them."""
    alone = job.replicas == 1
    return (kinds.JOB_SET, kinds.JOB) if alone else (kinds.JOB_SET,)


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
