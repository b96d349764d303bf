"""What a site or an author adds to our pods: a V1Pod in the API's own form, merged as cncf.kubernetes does.

Only what is named here may be set. All else would reach for the store, for an account, or out of what
Pod Security allows, or it is said elsewhere (Resources, image=, the site): the refusal names the field.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

from muster.backends.kubernetes import labels, secrets
from muster.backends.kubernetes.kinds import Document
from muster.backends.kubernetes.site import ClusterSite
from muster.core.errors import SpecError
from muster.core.names import check_variable

_OTHERS = (labels.PREFIX, "kueue.x-k8s.io/", "jobset.sigs.k8s.io/", "batch.kubernetes.io/")
_POD = frozenset({"apiVersion", "kind", "metadata", "spec"})
_METADATA = frozenset({"labels", "annotations"})
_SPEC = frozenset(
    {
        "affinity",
        "containers",
        "dnsConfig",
        "dnsPolicy",
        "hostAliases",
        "imagePullSecrets",
        "nodeSelector",
        "runtimeClassName",
        "schedulerName",
        "tolerations",
        "topologySpreadConstraints",
        "volumes",
    }
)
_CONTAINER = frozenset({"name", "env", "envFrom", "resources", "volumeMounts", "ports"})
_VOLUMES = frozenset(
    {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "secret"}
)
_WHY = {
    "initContainers": "the code and the worker are put in place there",
    "serviceAccountName": "pods of jobs have the site's, and no token of it",
    "serviceAccount": "pods of jobs have the site's, and no token of it",
    "automountServiceAccountToken": "pods of jobs have no token of Kubernetes'",
    "securityContext": "pods keep to Pod Security's restricted",
    "priorityClassName": "say priority= in the Dag",
    "terminationGracePeriodSeconds": "say grace_seconds= in the Dag",
    "activeDeadlineSeconds": "say run_timeout_seconds= in the Dag",
    "image": "say image= in the Dag; the site says where it is pulled from",
    "command": "the worker runs there; say command= or entrypoint= in the Dag",
    "args": "the worker runs there; say command= or entrypoint= in the Dag",
    "restartPolicy": "a gang is started again whole",
}


def merge(override: Mapping[str, Any], template: Document, *, site: ClusterSite) -> Document:
    """Return the pod template with an override merged over it.

    Mappings are merged key by key, lists that have names by name, tolerations and the like are added
    to, and a required node affinity is required beside ours.

    :param override: as ``ApiClient().sanitize_for_serialization`` writes a V1Pod.
    :raises SpecError: it sets what is not its own, or is no pod; the message has the field's path.
    """
    _only(override, _POD, "")
    metadata, spec = _mapping(override, "metadata", ""), _mapping(override, "spec", "")
    _only(metadata, _METADATA, "metadata")
    _only(spec, _SPEC, "spec")
    _keep_claim(spec, site)
    merged = deepcopy(template)
    for kind in sorted(_METADATA):
        given = _texts(_mapping(metadata, kind, "metadata"), f"metadata.{kind}")
        merged["metadata"][kind] = {**merged["metadata"][kind], **given}
    for name, value in spec.items():
        merge_field = _FIELDS.get(name)
        if merge_field is None:
            merged["spec"][name] = deepcopy(value)
        else:
            merge_field(merged["spec"], value, f"spec.{name}")
    return merged


def _refuse(path: str, why: str = "") -> SpecError:
    reason = why or _WHY.get(path.rpartition(".")[2].partition("[")[0], "muster sets it, or does not need it")
    return SpecError(f"pod override {path}: not to be set ({reason})")


def _only(given: object, allowed: frozenset[str], path: str) -> None:
    if not isinstance(given, Mapping):
        raise SpecError(f"pod override {path or 'pod'}: need a mapping, found {type(given).__name__}")
    for name in given:
        if name not in allowed:
            raise _refuse(f"{path}.{name}".lstrip("."))


def _mapping(given: Mapping[str, Any], name: str, path: str) -> Mapping[str, Any]:
    value = given.get(name)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        where = f"{path}.{name}".lstrip(".")
        raise SpecError(f"pod override {where}: need a mapping, found {type(value).__name__}")
    return value


def _list(value: object, path: str) -> list[Mapping[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(each, Mapping) for each in value):
        raise SpecError(f"pod override {path}: need a list of mappings, found {value!r:.60}")
    return value


def _texts(given: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    for key, value in given.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise SpecError(f"pod override {path}.{key!s:.80}: need text, found {value!r:.60}")
        if key.startswith(_OTHERS):
            raise _refuse(f"{path}.{key}", "these labels are muster's, Kueue's and the controllers' own")
    return given


def _name(each: Mapping[str, Any], path: str) -> str:
    name = each.get("name")
    if not isinstance(name, str) or not name:
        raise SpecError(f"pod override {path}.name: need a name, found {name!r:.60}")
    return name


def _by(key: str, ours: list[Document], theirs: list[Mapping[str, Any]]) -> list[Document]:
    """Merge two lists of mappings by the value of `key`; of the same value theirs counts."""
    return list({each[key]: deepcopy(dict(each)) for each in (*ours, *theirs)}.values())


def _node_selector(spec: Document, value: object, path: str) -> None:
    given = _texts(_mapping({"": value}, "", path), path)
    spec["nodeSelector"] = {**spec.get("nodeSelector", {}), **given}


def _added(spec: Document, value: object, path: str) -> None:
    name = path.rpartition(".")[2]
    there = spec.get(name, [])
    spec[name] = there + [deepcopy(dict(each)) for each in _list(value, path) if each not in there]


def _pull_secrets(spec: Document, value: object, path: str) -> None:
    given = _list(value, path)
    for place, each in enumerate(given):
        secrets.check_name(f"pod override {path}[{place}].name", each.get("name"))
    spec["imagePullSecrets"] = _by("name", spec.get("imagePullSecrets", []), given)


def _affinity(spec: Document, value: object, path: str) -> None:
    given = deepcopy(dict(_mapping({"": value}, "", path)))
    nodes = _mapping(given, "nodeAffinity", path)
    ours = spec.get("affinity", {}).get("nodeAffinity", {})
    spec["affinity"] = {**spec.get("affinity", {}), **given}
    if nodes or ours:
        spec["affinity"]["nodeAffinity"] = _node_affinity(ours, nodes, f"{path}.nodeAffinity")


def _node_affinity(ours: Document, theirs: Mapping[str, Any], path: str) -> Document:
    """What is required of a node by either is required by both: each of their terms gets ours."""
    required, preferred = (
        "requiredDuringSchedulingIgnoredDuringExecution",
        "preferredDuringSchedulingIgnoredDuringExecution",
    )
    merged: Document = {**ours, **theirs}
    if required in ours and required in theirs:
        where = f"{path}.{required}.nodeSelectorTerms"
        terms = _list(_mapping(theirs, required, path).get("nodeSelectorTerms"), where)
        (own,) = ours[required]["nodeSelectorTerms"]
        both = [
            {**term, "matchExpressions": [*own["matchExpressions"], *term.get("matchExpressions", [])]}
            for term in terms
        ]
        merged[required] = {"nodeSelectorTerms": both}
    if preferred in ours and preferred in theirs:
        merged[preferred] = [*ours[preferred], *_list(theirs[preferred], f"{path}.{preferred}")]
    return merged


def _volumes(spec: Document, value: object, path: str) -> None:
    given = _list(value, path)
    for place, each in enumerate(given):
        _check_volume(each, f"{path}[{place}]")
    spec["volumes"] = _by("name", spec["volumes"], given)


def _keep_claim(spec: Mapping[str, Any], site: ClusterSite) -> None:
    for place, each in enumerate(_list(spec.get("volumes", []), "spec.volumes")):
        path = f"spec.volumes[{place}]"
        if _mapping(each, "persistentVolumeClaim", path).get("claimName") == site.claim:
            where = f"{path}.persistentVolumeClaim.claimName"
            raise _refuse(where, f"claim {site.claim} is the store's, and pods see their own part of it")


def _check_volume(volume: Mapping[str, Any], path: str) -> None:
    if _name(volume, path).startswith(labels.OURS):
        raise _refuse(f"{path}.name", f"volumes called {labels.OURS}… are muster's own")
    kinds = [kind for kind in volume if kind != "name"]
    for kind in kinds:
        if kind not in _VOLUMES:
            raise _refuse(f"{path}.{kind}", f"these may be mounted: {', '.join(sorted(_VOLUMES))}")
    if "secret" in volume:
        name = _mapping(volume, "secret", path).get("secretName")
        secrets.check_name(f"pod override {path}.secret.secretName", name)


def _containers(spec: Document, value: object, path: str) -> None:
    for place, each in enumerate(_list(value, path)):
        where = f"{path}[{place}]"
        if _name(each, where) != labels.MAIN:
            raise _refuse(
                f"{where}.name",
                f"{each['name']!r:.60} is not {labels.MAIN!r}: a second container would hold the GPUs when the ranks have ended",
            )
        _only(each, _CONTAINER, where)
        (main,) = spec["containers"]
        _merge_main(main, each, where)


def _merge_main(main: Document, given: Mapping[str, Any], path: str) -> None:
    if "env" in given:
        main["env"] = _by("name", main["env"], _checked_env(given["env"], f"{path}.env"))
    if "envFrom" in given:
        main["envFrom"] = _checked_sources(given["envFrom"], f"{path}.envFrom")
    if "ports" in given:
        main["ports"] = deepcopy(_list(given["ports"], f"{path}.ports"))
    if "resources" in given:
        _merge_resources(main["resources"], _mapping(given, "resources", path), f"{path}.resources")
    if "volumeMounts" in given:
        mounts = _list(given["volumeMounts"], f"{path}.volumeMounts")
        ours = [each["mountPath"] for each in main["volumeMounts"]]
        for place, mount in enumerate(mounts):
            _check_mount(mount, f"{path}.volumeMounts[{place}]", ours)
        main["volumeMounts"] = [*main["volumeMounts"], *deepcopy(mounts)]


def _checked_env(value: object, path: str) -> list[Mapping[str, Any]]:
    given = _list(value, path)
    for place, each in enumerate(given):
        where = f"{path}[{place}]"
        check_variable(_name(each, where))
        reference = _mapping(_mapping(each, "valueFrom", where), "secretKeyRef", where)
        if reference:
            secrets.check_name(f"pod override {where}.valueFrom.secretKeyRef.name", reference.get("name"))
    return given


def _checked_sources(value: object, path: str) -> list[Document]:
    given = _list(value, path)
    for place, each in enumerate(given):
        where = f"{path}[{place}]"
        if "secretRef" in each:
            reference = _mapping(each, "secretRef", where)
            secrets.check_name(f"pod override {where}.secretRef.name", reference.get("name"))
    return deepcopy([dict(each) for each in given])


def _merge_resources(ours: Document, given: Mapping[str, Any], path: str) -> None:
    _only(given, frozenset({"requests", "limits"}), path)
    taken = set(ours["requests"]) | set(ours["limits"])
    for kind in given:
        amounts = _mapping(given, kind, path)
        for resource in amounts:
            if resource in taken and (kind, resource) != ("limits", "cpu"):
                raise _refuse(f"{path}.{kind}.{resource}", "say it as Resources(…) in the Dag")
        ours[kind] = {**ours[kind], **amounts}


def _check_mount(mount: Mapping[str, Any], path: str, ours: list[str]) -> None:
    if _name(mount, path).startswith(labels.OURS):
        raise _refuse(f"{path}.name", f"volumes called {labels.OURS}… are muster's own")
    at = mount.get("mountPath")
    if not isinstance(at, str) or not at.startswith("/") or ".." in at.split("/"):
        raise SpecError(f"pod override {path}.mountPath: need a path from the root on, found {at!r:.80}")
    plain = posixpath.normpath(at)
    for taken in (*ours, "/mnt/muster"):
        if _within(plain, taken) or _within(taken, plain):
            raise _refuse(f"{path}.mountPath", f"{at!r:.80} and muster's own {taken} would hide each other")


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


_FIELDS: dict[str, Callable[[Document, object, str], None]] = {
    "affinity": _affinity,
    "containers": _containers,
    "imagePullSecrets": _pull_secrets,
    "nodeSelector": _node_selector,
    "tolerations": _added,
    "topologySpreadConstraints": _added,
    "hostAliases": _added,
    "volumes": _volumes,
}
