"""A copy of what a namespace holds of our jobs, kept up to date by one watch a kind, however many there are.

Objects are cut while they are read, one after the other, so that a long list is never whole in memory: what no look at a
job reads is nine tenths of them, and a mirror holds thousands.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from muster.backends.kubernetes.api import kinds
from muster.backends.kubernetes.api.client import Client
from muster.backends.kubernetes.api.kinds import Document, Kind, Read
from muster.backends.kubernetes.api.watching import Change, ChangeWatch
from muster.backends.kubernetes.labels import FAILURES, IGNORED, INDEX, NAME, ROLE
from muster.backends.kubernetes.labels import JOB as JOB_LABEL
from muster.backends.kubernetes.state.seen import JobObjects, uid_of
from muster.core.errors import Unreachable

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
