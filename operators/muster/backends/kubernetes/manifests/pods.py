"""One role of a job as a pod template: what runs, what it sees, and what it may not do."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from muster.backends.kubernetes import labels
from muster.backends.kubernetes.api.kinds import Document
from muster.backends.kubernetes.manifests import wiring
from muster.backends.kubernetes.site import ClusterSite
from muster.core.job import Role
from muster.core.resources import Resources

OWN_SECONDS = 5  # after the ranks' grace, for the worker to say how they ended
_PYTHON = "python3"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_SHM, _SCRATCH, _BUNDLE, _TOLD, _CLAIM = (
    f"{labels.OURS}{name}" for name in ("shm", "scratch", "bundle", "job", "claim")
)


def template(submission: wiring.Submission, role: Role) -> Document:
    """Return the pod template of one role's replicas.

    It keeps to Pod Security's `restricted` and needs no uid of its own, no writable root, no account.
    """
    job, site = submission.job, submission.site
    spec: Document = {
        "restartPolicy": "Never",
        "serviceAccountName": site.service_account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": math.ceil(job.grace_seconds) + OWN_SECONDS,
        "securityContext": identity(site),
        "tolerations": tolerations(role.resources, site),
        "initContainers": [_bootstrap(submission, role)],
        "containers": [_main(submission, role)],
        "volumes": _volumes(submission, role.resources),
    }
    if role.resources.gpu_class:
        spec["affinity"] = affinity(role.resources.gpu_class)
    if site.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in site.image_pull_secrets]
    return {
        "metadata": {
            "labels": labels.labels(
                job, job_id=submission.job_id, attempt=submission.attempt, role=role.name
            ),
            # A Job leaves the count out while it is 0, and no path may be made of what is not there.
            "annotations": {**labels.notes(job), **({labels.IGNORED: "0"} if submission.single else {})},
        },
        "spec": spec,
    }


def identity(site: ClusterSite) -> Document:
    """Who a pod's processes are, as Pod Security's `restricted` wants it."""
    identity: Document = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    if site.user is not None:
        identity |= {"runAsUser": site.user, "runAsGroup": site.user}
    return identity


def confined() -> Document:
    """What a container may not do, as Pod Security's `restricted` wants it, and no writing but where it may."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def tolerations(resources: Resources, site: ClusterSite) -> list[Document]:
    """Our own, since by default pods stay on a lost node for five minutes."""
    away = [
        {
            "key": f"node.kubernetes.io/{state}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": site.lost_node_seconds,
        }
        for state in ("not-ready", "unreachable")
    ]
    kept = {"key": site.gpu_resource, "operator": "Exists", "effect": "NoSchedule"}
    return [*away, kept] if resources.gpus else away


def affinity(classes: Sequence[str]) -> Document:
    """One of these GPU classes is required, and an earlier one preferred."""
    wanted = {"key": labels.GPU_CLASS, "operator": "In", "values": list(classes)}
    ranked = [
        {
            "weight": max(1, 100 - place),
            "preference": {"matchExpressions": [{**wanted, "values": [name]}]},
        }
        for place, name in enumerate(classes)
    ]
    nodes: Document = {_REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [wanted]}]}}
    return {"nodeAffinity": {**nodes, _PREFERRED: ranked} if len(ranked) > 1 else nodes}


def _bootstrap(submission: wiring.Submission, role: Role) -> Document:
    """The init container.

    It costs a second or more, since a kubelet looks once a second whether it has ended; but what the main
    container mounts of the store is there, and this start's own, only when the store has answered.
    """
    program = f"{wiring.TOLD}/{wiring.BOOTSTRAP}"
    return {
        "name": labels.BOOTSTRAP,
        "image": _image(submission),
        "imagePullPolicy": "IfNotPresent",
        "command": [_PYTHON, "-I", program, wiring.bootstrap_orders(submission, role)],
        "env": wiring.counters(submission),
        "resources": {
            "requests": {"cpu": "10m", "memory": "32Mi"},
            "limits": {"memory": "256Mi"},
        },
        "securityContext": confined(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": _BUNDLE, "mountPath": wiring.BUNDLE},
            {"name": _TOLD, "mountPath": wiring.TOLD, "readOnly": True},
        ],
    }


def _image(submission: wiring.Submission) -> str:
    return submission.site.image(submission.job.image, submission.job.image_digest)


def _main(submission: wiring.Submission, role: Role) -> Document:
    return {
        "name": labels.MAIN,
        "image": _image(submission),
        "imagePullPolicy": "IfNotPresent",
        "command": [_PYTHON, f"{wiring.BUNDLE}/worker.pyz", f"{wiring.BUNDLE}/replica.json"],
        "workingDir": wiring.SCRATCH,
        "env": _environment(submission, role),
        "resources": amounts(role.resources, submission.site),
        "securityContext": confined(),
        "terminationMessagePath": wiring.TERMINATION_LOG,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [*_own_mounts(), *_inputs(submission), *_outputs(submission, role)],
    }


def _environment(submission: wiring.Submission, role: Role) -> list[Document]:
    """First what others name; a secret of the author's takes the place of a variable of ours."""
    asked = wiring.secret_variables(submission)
    plain = wiring.variables(submission, role)
    fixed = [{"name": name, "value": value} for name, value in plain.items() if name not in asked]
    return [*wiring.counters(submission), *fixed, *asked.values()]


def amounts(resources: Resources, site: ClusterSite) -> Document:
    """CPUs are a share and no limit; memory is both, so that no neighbour's greed ends a replica."""
    memory = _mebibytes(resources.memory_gib)
    limits = {"memory": memory}
    if resources.gpus:
        limits[site.gpu_resource] = str(resources.gpus)
    return {"requests": {"cpu": f"{math.ceil(resources.cpus * 1000)}m", **limits}, "limits": limits}


def _mebibytes(gib: float) -> str:
    return f"{math.ceil(gib * 1024)}Mi"


def _own_mounts() -> list[Document]:
    parts = {"work": wiring.SCRATCH, "home": wiring.HOME, "tmp": wiring.TEMPORARY}
    return [
        {"name": _BUNDLE, "mountPath": wiring.BUNDLE, "readOnly": True},
        {"name": _TOLD, "mountPath": wiring.TOLD, "readOnly": True},
        *({"name": _SCRATCH, "mountPath": path, "subPath": part} for part, path in parts.items()),
        {"name": _SHM, "mountPath": wiring.SHARED_MEMORY},
    ]


def _inputs(submission: wiring.Submission) -> list[Document]:
    job, site = submission.job, submission.site
    return [
        {
            "name": _CLAIM,
            "mountPath": path,
            "subPath": site.on_claim(wiring.version_path(version.address)),
            "readOnly": True,
        }
        for name in job.mounted
        for path, version in zip(wiring.input_paths(job, name), job.inputs[name].versions, strict=True)
    ]


def _outputs(submission: wiring.Submission, role: Role) -> list[Document]:
    """What this start of the gang writes, and nothing else of the store."""
    places = {wiring.GANG: "gang", wiring.CHECKPOINTS: "checkpoints"}
    if submission.job.staged:
        # The workers of an engine write what its driver, the first replica, has them write.
        whose = "0" if submission.job.launcher.drives else "$(MUSTER_REPLICA)"
        places[wiring.OUTPUTS] = f"{role.name}-{whose}"
    return [
        {"name": _CLAIM, "mountPath": path, "subPathExpr": f"{submission.staging}/{folder}"}
        for path, folder in places.items()
    ]


def mounted_secret(template: Mapping[str, Any]) -> str:
    """Return which Secret the pods of a template of ours wait for."""
    (told,) = [each for each in template["spec"]["volumes"] if each["name"] == _TOLD]
    return str(told["secret"]["secretName"])


def _volumes(submission: wiring.Submission, resources: Resources) -> list[Document]:
    """Shared memory is as large as the memory: its pages count there, and one limit is enough."""
    scratch = {"sizeLimit": _mebibytes(resources.disk_gib)} if resources.disk_gib else {}
    secret = {
        "secretName": submission.secret,
        "defaultMode": 0o444,
        "items": [{"key": key, "path": key} for key in (wiring.TOKEN, wiring.ORDERS, wiring.BOOTSTRAP)],
    }
    return [
        {"name": _CLAIM, "persistentVolumeClaim": {"claimName": submission.site.claim}},
        {"name": _BUNDLE, "emptyDir": {}},
        {"name": _SCRATCH, "emptyDir": scratch},
        {"name": _SHM, "emptyDir": {"medium": "Memory", "sizeLimit": _mebibytes(resources.memory_gib)}},
        {"name": _TOLD, "secret": secret},
    ]
