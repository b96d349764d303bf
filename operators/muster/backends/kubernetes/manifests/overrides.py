"""What a site or an author adds to our pods: a V1Pod in the API's own form, merged as cncf.kubernetes does.

Only what is named here may be set. All else would reach for the store, for an account, or out of what
Pod Security allows, or it is said elsewhere (Resources, image=, the site): the refusal names the field.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

from muster.backends.kubernetes import labels
from muster.backends.kubernetes.api.kinds import Document
from muster.backends.kubernetes.cluster.facts import Cluster
from muster.backends.kubernetes.manifests import pods, wiring
from muster.backends.kubernetes.manifests.wiring import Submission
from muster.backends.kubernetes.site import ClusterSite
from muster.core.errors import SpecError
from muster.core.job import JobSpec, Role
from muster.core.names import check_variable

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


def _refused(path: str, *, why: str = "") -> SpecError:
    """The error that says why a field is not to be set."""
    reason = why or _WHY.get(path.rpartition(".")[2].partition("[")[0], "muster sets it, or does not need it")
    return SpecError(f"pod override {path}: not to be set ({reason})")


def _mapping(value: object, path: str, allowed: frozenset[str] | None = None) -> Mapping[str, Any]:
    """Return a mapping, empty where there is none. :raises SpecError: it is something else, or has a field not allowed."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise SpecError(f"pod override {path or 'pod'}: need a mapping, found {type(value).__name__}")
    for name in value:
        if allowed is not None and name not in allowed:
            raise _refused(f"{path}.{name}".lstrip("."))
    return value


def _items(value: object, path: str) -> list[Mapping[str, Any]]:
    """Return a list of mappings. :raises SpecError: it is none."""
    if not isinstance(value, list) or not all(isinstance(each, Mapping) for each in value):
        raise SpecError(f"pod override {path}: need a list of mappings, found {value!r:.60}")
    return value


def _texts(value: object, path: str) -> Mapping[str, Any]:
    """Return labels or the like. :raises SpecError: one is no text, or is for others to set."""
    given = _mapping(value, path)
    for key, value in given.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise SpecError(f"pod override {path}.{key!s:.80}: need text, found {value!r:.60}")
        if key.startswith(_OTHERS):
            raise _refused(f"{path}.{key}", why="these labels are muster's, Kueue's and the controllers' own")
    return given


def _name_of(each: Mapping[str, Any], path: str) -> str:
    name = each.get("name")
    if not isinstance(name, str) or not name:
        raise SpecError(f"pod override {path}.name: need a name, found {name!r:.60}")
    return name


_POD = frozenset({"apiVersion", "kind", "metadata", "spec"})
_METADATA = frozenset({"labels", "annotations"})
_SPEC = frozenset(
    {
        "affinity",
        "containers",
        "dnsConfig",
        "hostAliases",
        "imagePullSecrets",
        "nodeSelector",
        "runtimeClassName",
        "tolerations",
        "volumes",
    }
)
_CONTAINER = frozenset({"name", "env", "envFrom", "resources", "volumeMounts", "ports"})
_VOLUMES = frozenset({"configMap", "downwardAPI", "emptyDir", "persistentVolumeClaim", "secret"})
# By which Services and network policies find the store service (helm/muster), KServe's servers and Seldon Core's.
_OF_SERVICES = frozenset({"app", "seldon-app", "serving.kserve.io/inferenceservice"})


_ANYWHERE = ClusterSite(
    namespace="anywhere",
    claim="not.known.yet",
    store_url="http://anywhere",
    images={"any": "any"},
)
_ANY_ROLE = Role(command=("any",))
_ANY_CLUSTER = Cluster(namespace="anywhere", job_set=True)
_ANY_JOB = JobSpec(name="any", image="any", image_digest="b3:" + "0" * 64, roles=(_ANY_ROLE,))


def check(override: Mapping[str, Any]) -> None:
    """Refuse what no site would take of any job, long before there is a cluster.

    :raises SpecError: as :func:`merge`; that it reaches for the site's claim only that can tell.
    """
    submission = Submission(job=_ANY_JOB, job_id="any", attempt=1, site=_ANYWHERE, cluster=_ANY_CLUSTER)
    merge(override, pods.template(submission, _ANY_ROLE), site=_ANYWHERE)


def merge(override: Mapping[str, Any], template: Document, *, site: ClusterSite) -> Document:
    """Return the pod template with an override merged over it.

    Mappings are merged key by key, lists that have names by name, tolerations and the like are added
    to, and a required node affinity is required beside ours.

    :param override: as ``ApiClient().sanitize_for_serialization`` writes a V1Pod.
    :raises SpecError: it sets what is not its own, or is no pod; the message has the field's path.
    """
    _mapping(override, "", _POD)
    metadata = _mapping(override.get("metadata"), "metadata", _METADATA)
    spec = _mapping(override.get("spec"), "spec", _SPEC)
    _keep_claim(spec, site)
    merged = deepcopy(template)
    _keep_services(metadata)
    for kind in sorted(_METADATA):
        given = _texts(metadata.get(kind), f"metadata.{kind}")
        merged["metadata"][kind] = {**merged["metadata"][kind], **given}
    for name, value in spec.items():
        merge_field = _FIELDS.get(name)
        if merge_field is None:
            merged["spec"][name] = deepcopy(value)
        else:
            merge_field(merged["spec"], value, f"spec.{name}")
    return merged


def _keep_services(metadata: Mapping[str, Any]) -> None:
    for key in _mapping(metadata.get("labels"), "metadata.labels"):
        if key in _OF_SERVICES:
            why = "a pod with it may be sent what is for the store service or a model server, tokens too"
            raise _refused(f"metadata.labels.{key}", why=why)


def _by(key: str, ours: list[Document], theirs: list[Mapping[str, Any]]) -> list[Document]:
    """Merge two lists of mappings by the value of `key`; of the same value theirs counts."""
    return list({each[key]: deepcopy(dict(each)) for each in (*ours, *theirs)}.values())


def _node_selector(spec: Document, value: object, path: str) -> None:
    spec["nodeSelector"] = {**spec.get("nodeSelector", {}), **_texts(value, path)}


def _added(spec: Document, value: object, path: str) -> None:
    name = path.rpartition(".")[2]
    there = spec.get(name, [])
    spec[name] = there + [deepcopy(dict(each)) for each in _items(value, path) if each not in there]


def _pull_secrets(spec: Document, value: object, path: str) -> None:
    given = _items(value, path)
    for place, each in enumerate(given):
        _check_reference(each, f"{path}[{place}]")
    spec["imagePullSecrets"] = _by("name", spec.get("imagePullSecrets", []), given)


def _check_reference(value: object, path: str) -> None:
    """Refuse a reference to a Secret that no pod may ask for."""
    wiring.check_secret_name(f"pod override {path}.name", _mapping(value, path).get("name"))


def _affinity(spec: Document, value: object, path: str) -> None:
    given = _mapping(value, path, frozenset({"nodeAffinity"})).get("nodeAffinity")
    path = f"{path}.nodeAffinity"
    if theirs := _mapping(given, path):
        ours = spec.get("affinity", {}).get("nodeAffinity", {})
        spec["affinity"] = {"nodeAffinity": _node_affinity(ours, deepcopy(dict(theirs)), path)}


def _node_affinity(ours: Document, theirs: Mapping[str, Any], path: str) -> Document:
    """What is required of a node by either is required by both: each of their terms gets ours."""
    required, preferred = (
        "requiredDuringSchedulingIgnoredDuringExecution",
        "preferredDuringSchedulingIgnoredDuringExecution",
    )
    merged: Document = {**ours, **theirs}
    if required in ours and required in theirs:
        where = f"{path}.{required}.nodeSelectorTerms"
        (own,) = ours[required]["nodeSelectorTerms"]

        def both(term: Mapping[str, Any]) -> list[Mapping[str, Any]]:
            return [*own["matchExpressions"], *_items(term.get("matchExpressions", []), where)]

        terms = _items(_mapping(theirs[required], f"{path}.{required}").get("nodeSelectorTerms"), where)
        merged[required] = {"nodeSelectorTerms": [{**each, "matchExpressions": both(each)} for each in terms]}
    if preferred in ours and preferred in theirs:
        merged[preferred] = [*ours[preferred], *_items(theirs[preferred], f"{path}.{preferred}")]
    return merged


def _volumes(spec: Document, value: object, path: str) -> None:
    given = _items(value, path)
    for place, each in enumerate(given):
        _check_volume(each, f"{path}[{place}]")
    spec["volumes"] = _by("name", spec["volumes"], given)


def _keep_claim(spec: Mapping[str, Any], site: ClusterSite) -> None:
    for place, each in enumerate(_items(spec.get("volumes", []), "spec.volumes")):
        where = f"spec.volumes[{place}].persistentVolumeClaim"
        if _mapping(each.get("persistentVolumeClaim"), where).get("claimName") == site.claim:
            raise _refused(
                f"{where}.claimName",
                why=f"claim {site.claim} is the store's, and pods see their own part of it",
            )


def _check_volume(volume: Mapping[str, Any], path: str) -> None:
    if _name_of(volume, path).startswith(labels.OURS):
        raise _refused(f"{path}.name", why=f"volumes called {labels.OURS}… are muster's own")
    for kind in volume:
        if kind != "name" and kind not in _VOLUMES:
            raise _refused(f"{path}.{kind}", why=f"these may be mounted: {', '.join(sorted(_VOLUMES))}")
    if "secret" in volume:
        name = _mapping(volume["secret"], f"{path}.secret").get("secretName")
        wiring.check_secret_name(f"pod override {path}.secret.secretName", name)


def _containers(spec: Document, value: object, path: str) -> None:
    for place, each in enumerate(_items(value, path)):
        where = f"{path}[{place}]"
        if _name_of(each, where) != labels.MAIN:
            raise _refused(
                f"{where}.name",
                why=f"{each['name']!r:.60} is not {labels.MAIN!r}: a second container would hold the GPUs when the ranks have ended",
            )
        _mapping(each, where, _CONTAINER)
        (main,) = spec["containers"]
        _merge_main(main, each, where)


def _merge_main(main: Document, given: Mapping[str, Any], path: str) -> None:
    if "env" in given:
        main["env"] = _by("name", main["env"], _checked_env(given["env"], f"{path}.env"))
    if "envFrom" in given:
        main["envFrom"] = _checked_sources(given["envFrom"], f"{path}.envFrom")
    if "ports" in given:
        main["ports"] = deepcopy(_items(given["ports"], f"{path}.ports"))
    if "resources" in given:
        _merge_resources(main["resources"], given["resources"], f"{path}.resources")
    if "volumeMounts" in given:
        mounts = _items(given["volumeMounts"], f"{path}.volumeMounts")
        ours = [each["mountPath"] for each in main["volumeMounts"]]
        for place, mount in enumerate(mounts):
            _check_mount(mount, f"{path}.volumeMounts[{place}]", ours)
        main["volumeMounts"] = [*main["volumeMounts"], *deepcopy(mounts)]


def _checked_env(value: object, path: str) -> list[Mapping[str, Any]]:
    given = _items(value, path)
    for place, each in enumerate(given):
        where = f"{path}[{place}]"
        check_variable(_name_of(each, where))
        where = f"{where}.valueFrom"
        if reference := _mapping(each.get("valueFrom"), where).get("secretKeyRef"):
            _check_reference(reference, f"{where}.secretKeyRef")
    return given


def _checked_sources(value: object, path: str) -> list[Document]:
    given = _items(value, path)
    for place, each in enumerate(given):
        where = f"{path}[{place}]"
        if "secretRef" in each:
            _check_reference(each["secretRef"], f"{where}.secretRef")
    return deepcopy([dict(each) for each in given])


def _merge_resources(ours: Document, value: object, path: str) -> None:
    given = _mapping(value, path, frozenset({"requests", "limits"}))
    taken = set(ours["requests"]) | set(ours["limits"])
    for kind in given:
        amounts = _mapping(given[kind], f"{path}.{kind}")
        for resource in amounts:
            if resource in taken and (kind, resource) != ("limits", "cpu"):
                raise _refused(f"{path}.{kind}.{resource}", why="say it as Resources(…) in the Dag")
        ours[kind] = {**ours[kind], **amounts}


def _check_mount(mount: Mapping[str, Any], path: str, ours: list[str]) -> None:
    if _name_of(mount, path).startswith(labels.OURS):
        raise _refused(f"{path}.name", why=f"volumes called {labels.OURS}… are muster's own")
    at = mount.get("mountPath")
    if not isinstance(at, str) or not at.startswith("/") or ".." in at.split("/"):
        raise SpecError(f"pod override {path}.mountPath: need a path from the root on, found {at!r:.80}")
    plain = posixpath.normpath(at)
    for taken in (*ours, "/mnt/muster"):
        if _within(plain, taken) or _within(taken, plain):
            raise _refused(
                f"{path}.mountPath", why=f"{at!r:.80} and muster's own {taken} would hide each other"
            )


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


_FIELDS: dict[str, Callable[[Document, object, str], None]] = {
    "affinity": _affinity,
    "containers": _containers,
    "imagePullSecrets": _pull_secrets,
    "nodeSelector": _node_selector,
    "tolerations": _added,
    "hostAliases": _added,
    "volumes": _volumes,
}
