"""Objects without what no look at a job reads, which is nine tenths of them: a mirror holds thousands.

They are cut while they are read, one after the other, so that a long list is never whole in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from muster.backends.kubernetes.api.kinds import JOB, JOB_SET, POD, POD_GROUP, WORKLOAD, Document, Kind
from muster.backends.kubernetes.labels import FAILURES, IGNORED, INDEX, NAME

Read = Callable[[Document], Document]
"""Is given every JSON object of an answer, the innermost first; what it returns takes that one's place."""

_METADATA = (
    *("name", "namespace", "uid", "resourceVersion", "labels", "ownerReferences"),
    *("creationTimestamp", "deletionTimestamp"),
)
_NOTES = (FAILURES, IGNORED, INDEX, NAME)
_CONTAINER = ("name", "restartPolicy", "resources")


def whole(found: Document) -> Document:
    """Leave out who wrote which field, which is half of an object."""
    found.pop("managedFields", None)
    return found


def lean(kind: Kind) -> Read:
    """Return what leaves of objects of a kind what :mod:`~.observe` and :mod:`~.verdicts` read, and their status."""
    spec = _SPECS.get(kind)

    def read(found: Document) -> Document:
        metadata = found.get("metadata")
        # Annotations may have such a key too, whose value is text; a template's metadata has no uid.
        if not isinstance(metadata, dict) or "uid" not in metadata:
            return found
        found["metadata"] = _metadata(metadata)
        if spec is not None and "spec" in found:
            found["spec"] = spec(found["spec"])
        return found

    return read


def _some(document: Mapping[str, Any], names: tuple[str, ...]) -> Document:
    return {name: document[name] for name in names if name in document}


def _metadata(metadata: Mapping[str, Any]) -> Document:
    notes = _some(metadata.get("annotations") or {}, _NOTES)
    return _some(metadata, _METADATA) | ({"annotations": notes} if notes else {})


def _pod(spec: Mapping[str, Any]) -> Document:
    return _some(spec, ("nodeName", "schedulingGroup"))


def _template(template: Mapping[str, Any]) -> Document:
    """Of a template, what its pods ask for."""
    spec = template.get("spec") or {}
    kept = _some(spec, ("overhead",))
    for containers in ("containers", "initContainers"):
        kept[containers] = [_some(each, _CONTAINER) for each in spec.get(containers) or ()]
    return {"metadata": _some(template.get("metadata") or {}, ("labels",)), "spec": kept}


def _job(spec: Mapping[str, Any]) -> Document:
    return {**_some(spec, ("suspend", "parallelism")), "template": _template(spec.get("template") or {})}


def _job_set(spec: Mapping[str, Any]) -> Document:
    jobs = [(each.get("template") or {}).get("spec") or {} for each in spec.get("replicatedJobs") or ()]
    roles = [{"template": {"spec": _job(each)}} for each in jobs]
    return {**_some(spec, ("suspend",)), "replicatedJobs": roles}


def _workload(spec: Mapping[str, Any]) -> Document:
    """With the affinity of each pod set, which says of which flavors there is anything to tell."""
    sets = [
        {"name": each.get("name"), "template": {"spec": _some(pod, ("affinity",))}}
        for each in spec.get("podSets") or ()
        if "affinity" in (pod := (each.get("template") or {}).get("spec") or {})
    ]
    return _some(spec, ("queueName", "priority")) | ({"podSets": sets} if sets else {})


def _nothing(_: Mapping[str, Any]) -> Document:
    return {}


_SPECS: Mapping[Kind, Read] = {
    POD: _pod,
    JOB: _job,
    JOB_SET: _job_set,
    WORKLOAD: _workload,
    POD_GROUP: _nothing,
}
