"""Reads a pod override, and refuses by its path what may not be set or is not what it has to be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muster.backends.kubernetes import labels
from muster.core.errors import SpecError

_OTHERS = (
    labels.PREFIX,
    "kueue.x-k8s.io/",
    "batch.kubernetes.io/",
    "jobset.sigs.k8s.io/",
    "alpha.jobset.sigs.k8s.io/",  # JobSet makes affinities between pods of it
)
_WHOLE = "who places the gang looks at nodes alone, and it could start in part"
_WHY = {
    "initContainers": "the code and the worker are put in place there",
    "serviceAccountName": "pods of jobs have the site's, and no token of it",
    "serviceAccount": "pods of jobs have the site's, and no token of it",
    "automountServiceAccountToken": "pods of jobs have no token of Kubernetes'",
    "securityContext": "pods keep to Pod Security's restricted",
    "priorityClassName": "say priority= in the Dag",
    "terminationGracePeriodSeconds": "say grace_seconds= in the Dag",
    "activeDeadlineSeconds": "say run_timeout= in the Dag",
    "image": "say image= in the Dag; the site says where it is pulled from",
    "command": "the worker runs there; say command= or entrypoint= in the Dag",
    "args": "the worker runs there; say command= or entrypoint= in the Dag",
    "restartPolicy": "a gang is started again whole",
    "podAffinity": _WHOLE,
    "podAntiAffinity": _WHOLE,
    "topologySpreadConstraints": _WHOLE,
    "schedulerName": _WHOLE,
}


def refused(path: str, *, why: str = "") -> SpecError:
    """The error that says why a field is not to be set."""
    reason = why or _WHY.get(path.rpartition(".")[2].partition("[")[0], "muster sets it, or does not need it")
    return SpecError(f"pod override {path}: not to be set ({reason})")


def only(given: object, allowed: frozenset[str], path: str) -> None:
    """Refuse every field but those. :raises SpecError: one is there, or it is no mapping."""
    if not isinstance(given, Mapping):
        raise SpecError(f"pod override {path or 'pod'}: need a mapping, found {type(given).__name__}")
    for name in given:
        if name not in allowed:
            raise refused(f"{path}.{name}".lstrip("."))


def mapping(given: Mapping[str, Any], name: str, path: str) -> Mapping[str, Any]:
    """Return the mapping in a field, empty where there is none. :raises SpecError: it is something else."""
    value = given.get(name)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        where = f"{path}.{name}".strip(".")
        raise SpecError(f"pod override {where}: need a mapping, found {type(value).__name__}")
    return value


def items(value: object, path: str) -> list[Mapping[str, Any]]:
    """Return a list of mappings. :raises SpecError: it is none."""
    if not isinstance(value, list) or not all(isinstance(each, Mapping) for each in value):
        raise SpecError(f"pod override {path}: need a list of mappings, found {value!r:.60}")
    return value


def texts(given: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """Return labels or the like. :raises SpecError: one is no text, or is for others to set."""
    for key, value in given.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise SpecError(f"pod override {path}.{key!s:.80}: need text, found {value!r:.60}")
        if key.startswith(_OTHERS):
            raise refused(f"{path}.{key}", why="these labels are muster's, Kueue's and the controllers' own")
    return given


def name_of(each: Mapping[str, Any], path: str) -> str:
    """Return the name of a mapping in a list. :raises SpecError: it has none."""
    name = each.get("name")
    if not isinstance(name, str) or not name:
        raise SpecError(f"pod override {path}.name: need a name, found {name!r:.60}")
    return name
