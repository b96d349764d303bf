"""The objects of jobs on the cluster now: from the mirror while jobs are followed, else by request.

The mirror is a copy of what a namespace holds of our jobs, kept up to date by one watch a kind, however many there are.
Objects are cut while they are read, one after the other, so that a long list is never whole in memory: what no look at a
job reads is nine tenths of them, and a mirror holds thousands.

One object of a job owns all others, its root: its JobSet, or its Job where the cluster has no JobSets.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, TypeAlias

from muster.backends.kubernetes import labels
from muster.backends.kubernetes.api import kinds
from muster.backends.kubernetes.api.client import Client
from muster.backends.kubernetes.api.kinds import Document, Kind, Read, kind_of
from muster.backends.kubernetes.api.refusals import NotServed
from muster.backends.kubernetes.api.watching import Change, ChangeWatch
from muster.backends.kubernetes.cluster.discovery import Right, Survey, lacking, rules
from muster.backends.kubernetes.labels import FAILURES, IGNORED, INDEX, JOB as JOB_LABEL, NAME, ROLE, selector
from muster.backends.kubernetes.manifests.pods import mounted_secret
from muster.backends.kubernetes.site import ClusterSite
from muster.backends.kubernetes.state.seen import JobObjects, uid_of
from muster.core.errors import Conflict, Forbidden, Unreachable
from muster.core.job import JobSpec

_FIRST_SECONDS, _AGAIN_SECONDS = 30.0, 180.0
_OWNER_UID = "kueue.x-k8s.io/job-uid"  # of Workloads: the uid of what they stand for


@dataclass(eq=False)
class Sight:
    """Looks at jobs. Safe to share between threads."""

    client: Client
    _: KW_ONLY
    site: ClusterSite
    survey: Survey
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
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
            elif self._mirror.is_deaf and self.clock() > self._again:
                self._again = self.clock() + _AGAIN_SECONDS
                try:
                    before, self._mirror = self._mirror, self._begin()
                except Forbidden as error:  # as an API server that starts does; the old one goes on trying
                    raise Unreachable(f"the API server forbids what it allowed before: {error}") from error
                before.close()
            return self._mirror

    def _begin(self) -> Mirror:
        self.survey.last()  # which kinds there are may be what has changed
        self._check_rights()
        mirror = Mirror(self.client, namespace=self.site.namespace, kinds=self.survey.kinds())
        try:
            mirror.wait(timeout_seconds=_FIRST_SECONDS)
        except BaseException:
            mirror.close()
            raise
        return mirror

    def _check_rights(self) -> None:
        """Ask for the rights before the watch begins: a watch that is refused would try again for ever."""
        namespace, there = self.site.namespace, self.survey.kinds()
        wanted = [Right(verb, kind) for kind in there for verb in ("list", "watch")]
        served = {(kind.api_version, kind.plural) for kind in there}
        missing = lacking(self.client, wanted, namespace=namespace, served=served)
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
        there = self.survey.kinds()
        found: list[Document] = []
        for kind in {*root_kinds(job), kinds.JOB, kinds.POD, kinds.POD_GROUP} & {*there}:
            found += self._find(kind, labels=of_job)
        root = JobObjects.of(found).root
        if root is not None and kinds.WORKLOAD in there:
            found += self._find(kinds.WORKLOAD, labels=selector({_OWNER_UID: root["metadata"]["uid"]}))
        found += self._events({uid_of(each) for each in found})
        return JobObjects.of([*found, *self._ended_badly(job_id, {uid_of(each) for each in found})])

    @property
    def followed(self) -> bool:
        """Whether the namespace is followed, and so asked nothing."""
        return self._mirror is not None

    def roots(self) -> Sequence[Document]:
        """Return the JobSets and Jobs of all our jobs, but for those that a JobSet owns: they go with it."""
        if self._mirror is not None:
            return self._mirror.roots()
        there = {kinds.JOB, kinds.JOB_SET} & {*self.survey.kinds()}
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
        return self.client.find(kind, namespace=self.site.namespace, labels=labels, fields=fields)

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


# Workloads carry no label of ours, and events none at all: they are found by what they are about.
_SELECTORS: Mapping[Kind, Mapping[str, str]] = {
    kinds.JOB_SET: {"labels": JOB_LABEL},
    kinds.JOB: {"labels": JOB_LABEL},
    kinds.POD: {"labels": JOB_LABEL},
    kinds.POD_GROUP: {"labels": JOB_LABEL},
    kinds.WORKLOAD: {},
    kinds.EVENT: {"fields": "type=Warning"},
}

# Of which pods that ended badly are kept: why the last start was made, and what ended this one.
_KEPT_STARTS = 2
_DEAF_SECONDS = 180.0  # all is well below two and a half minutes

_Key = tuple[str, str]

_Shape: TypeAlias = Mapping[str, Any]
"""The fields of an object that are kept, each with the shape of what is in it; None keeps all of that."""


def _all(*names: str) -> _Shape:
    return dict.fromkeys(names)


_METADATA: _Shape = {
    **_all("name", "namespace", "uid", "resourceVersion", "labels", "ownerReferences"),
    **_all("creationTimestamp", "deletionTimestamp"),
    "annotations": _all(FAILURES, IGNORED, INDEX, NAME),
}
_CONTAINER = _all("name", "restartPolicy", "resources")
_TEMPLATE: _Shape = {
    "metadata": _all("labels"),
    "spec": {**_all("overhead"), "containers": _CONTAINER, "initContainers": _CONTAINER},
}
_JOB: _Shape = {**_all("suspend", "parallelism"), "template": _TEMPLATE}
_SPECS: Mapping[Kind, _Shape] = {
    kinds.POD: _all("nodeName", "schedulingGroup"),
    kinds.JOB: _JOB,
    kinds.JOB_SET: {**_all("suspend"), "replicatedJobs": {"template": {"spec": _JOB}}},
    # The affinity of each pod set says of which flavors there is anything to tell.
    kinds.WORKLOAD: {
        **_all("queueName", "priority"),
        "podSets": {"name": None, "template": {"spec": _all("affinity")}},
    },
    kinds.POD_GROUP: {},
}


def lean(kind: Kind) -> Read:
    """Return what leaves of objects of a kind what :mod:`~.observe` and :mod:`~.verdicts` read, and their status."""
    spec = _SPECS.get(kind)

    def read(found: Document) -> Document:
        metadata = found.get("metadata")
        # Annotations may have such a key too, whose value is text; a template's metadata has no uid.
        if not isinstance(metadata, dict) or "uid" not in metadata:
            return found
        found["metadata"] = _shaped(metadata, _METADATA)
        if spec is not None and "spec" in found:
            found["spec"] = _shaped(found["spec"], spec)
        return found

    return read


def _shaped(found: Any, shape: _Shape | None) -> Any:
    """Return what a shape names of an object, or of each object of a list; what is empty then is left out."""
    if shape is None or found is None:
        return found
    if isinstance(found, list):
        parts = [_shaped(each, shape) for each in found]
        return [each for each in parts if each.keys() - {"name"}]  # a name alone says nothing
    kept = {name: _shaped(found[name], inner) for name, inner in shape.items() if name in found}
    return {name: part for name, part in kept.items() if part or shape[name] is None}


class Mirror:
    """The objects of the jobs of one namespace. Safe to use from many threads.

    Pods that ended badly are kept after they were deleted, two of each replica, for as long as their job has
    objects: they say why a gang was started again. It follows until :meth:`close`; as a context it closes itself.

    :param kinds: those that the cluster serves (:meth:`~.client.Client.served`).
    :param read: chooses what is kept of the objects of a kind.
    """

    def __init__(
        self,
        client: Client,
        *,
        namespace: str,
        kinds: Iterable[Kind],
        read: Callable[[Kind], Read] = lean,
    ) -> None:
        self._lock = threading.Condition()
        self._groups: dict[_Key, dict[str, Document]] = {}  # by what they belong to, then by uid
        self.job_of: dict[str, str] = {}  # by uid of its object
        self._seen: dict[str, JobObjects] = {}  # by job, until something of it changes
        self._workloads: tuple[Document, ...] | None = None  # likewise
        self._watches = {
            kind: ChangeWatch(client, kind, namespace=namespace, read=read(kind), **_SELECTORS[kind])
            for kind in kinds
        }
        self._unread = set(self._watches)
        for kind, watch in self._watches.items():
            threading.Thread(
                target=self._follow, args=(kind, watch), name=f"muster-watch-{kind.plural}", daemon=True
            ).start()

    def close(self) -> None:
        """End every watch. Idempotent, and does not wait for them."""
        for watch in self._watches.values():
            watch.close()

    @property
    def is_deaf(self) -> bool:
        """Whether some kind has not been heard of for long though others are: a new mirror may do better."""
        silent = [watch.silent_seconds for watch in self._watches.values()]
        return max(silent) > _DEAF_SECONDS > min(silent)

    def wait(self, *, timeout_seconds: float) -> None:
        """Return when everything was read once. :raises Unreachable: it was not by then."""
        with self._lock:
            if not self._lock.wait_for(lambda: not self._unread, timeout_seconds):
                missing = ", ".join(sorted(kind.plural for kind in self._unread))
                raise Unreachable(f"the cluster's {missing} could not be read for {timeout_seconds:g} s")

    def seen(self, job_id: str) -> JobObjects:
        """Return what there is of a job now: the same object as before where nothing of it has changed."""
        with self._lock:
            if job_id not in self._seen:
                own = list(self._groups.get(("job", job_id), {}).values())
                about = [
                    each for one in own for each in self._groups.get(("about", uid_of(one)), {}).values()
                ]
                found = JobObjects.of([*own, *about])
                if not own:  # not kept: nothing would ever remove it
                    return found
                self._seen[job_id] = found
            return self._seen[job_id]

    def roots(self) -> tuple[Document, ...]:
        """Return the JobSets and Jobs that nothing else owns."""
        with self._lock:
            found = [each for kind in (kinds.JOB_SET, kinds.JOB) for each in self._all(kind)]
        return tuple(each for each in found if not each["metadata"].get("ownerReferences"))

    def workloads(self) -> tuple[Document, ...]:
        """Return every Workload of the namespace, also of those who use its queues without us.

        It is the same tuple as before where none has changed.
        """
        with self._lock:
            if self._workloads is None:
                self._workloads = tuple(self._all(kinds.WORKLOAD))
            return self._workloads

    def _follow(self, kind: Kind, watch: ChangeWatch) -> None:
        for change in watch.changes():
            with self._lock:
                self._apply(kind, change)
                self._unread.discard(kind)
                self._lock.notify_all()

    def _apply(self, kind: Kind, change: Change) -> None:
        if kind is kinds.WORKLOAD:
            self._workloads = None
        if change.whole:
            there = {uid_of(document) for document in change.put}
            for document in [each for each in self._all(kind) if uid_of(each) not in there]:
                self._remove(document)
        for document in change.put:
            self._groups.setdefault(self._key(document), {})[uid_of(document)] = document
        for document in change.gone:
            self._remove(document)

    def _all(self, kind: Kind) -> Iterator[Document]:
        for group in self._groups.values():
            yield from (each for each in group.values() if each["kind"] == kind.name and not _kept(each))

    def _remove(self, document: Document) -> None:
        """Forget an object; a pod that ended badly with the last of its job, or when two more of its replica did."""
        key, uid = self._key(document), uid_of(document)
        group = self._groups.get(key, {})
        group.pop(uid, None)
        if document["kind"] == kinds.POD.name and (document.get("status") or {}).get("phase") == "Failed":
            group[uid] = {**document, "kept": True}
            self._forget_old(group, replica=_replica(document))
        else:
            self.job_of.pop(uid, None)
        if all(map(_kept, group.values())):
            self._groups.pop(key, None)
            for each in group:
                self.job_of.pop(each, None)

    def _forget_old(self, group: dict[str, Document], *, replica: tuple[str, str]) -> None:
        """Keep the last two that ended badly: a gang may be preempted any number of times.

        Not by the number of their start: a gang that its queue puts back and lets in again is in the same.
        """
        own = [uid for uid, each in group.items() if _kept(each) and _replica(each) == replica]
        for uid in own[:-_KEPT_STARTS]:
            del group[uid]
            self.job_of.pop(uid, None)

    def _key(self, document: Document) -> _Key:
        """Say where an object belongs, with its job or with what it is about, and forget what was seen of that."""
        if document["kind"] == kinds.WORKLOAD.name:
            owners = document["metadata"].get("ownerReferences") or ()
            return self._about(str(owners[0]["uid"]) if owners else "")
        if document["kind"] == kinds.EVENT.name:
            return self._about(str(document["involvedObject"].get("uid")))
        job_id = str(document["metadata"]["labels"][JOB_LABEL])
        self.job_of[uid_of(document)] = job_id
        self._seen.pop(job_id, None)
        return "job", job_id

    def _about(self, uid: str) -> _Key:
        if uid in self.job_of:
            self._seen.pop(self.job_of[uid], None)
        return "about", uid


def _replica(pod: Document) -> tuple[str, str]:
    labels, notes = pod["metadata"].get("labels") or {}, pod["metadata"].get("annotations") or {}
    return str(labels.get(ROLE)), str(notes.get(INDEX) or labels.get(INDEX))


def _kept(document: Mapping[str, Any]) -> bool:
    return "kept" in document
