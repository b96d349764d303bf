"""What a test asks the cluster that it runs in."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from tests.cluster import kubectl
from tests.cluster.accounts import NAMESPACE as NAMESPACE
from tests.cluster.layout import Layout

IMAGE = "localhost/python3:1"
_VARIABLE = "MUSTER_TEST_CLUSTER"
_RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


def layout() -> Layout:
    """Return the cluster that this test runs in; a test outside one fails."""
    if _VARIABLE not in os.environ:
        pytest.fail("this test needs the test cluster around it: make test-cluster")
    return Layout.at(Path(os.environ[_VARIABLE]))


def environment(of: Layout) -> dict[str, str]:
    """Return the variables of a process inside a cluster."""
    return os.environ | {
        _VARIABLE: str(of.root),
        "KUBECONFIG": str(of.kubeconfig),
        "PATH": f"{of.programs}:{os.environ.get('PATH', '')}",
    }


def gang(
    name: str, *, pods: int, gpus: int, script: str, queue: str = "team-a", priority: str = "normal"
) -> dict[str, Any]:
    """Return a JobSet of equal pods that run a script of Python's, placed whole or not at all."""
    container = {
        "name": "main",
        "image": IMAGE,
        "command": ["python3", "-u", "-c", script],
        "resources": {"limits": {"cpu": "100m", "memory": "64Mi", "nvidia.com/gpu": gpus}},
        "securityContext": _RESTRICTED,
        "volumeMounts": [{"name": "claim", "mountPath": "/claim"}],
    }
    pod = {
        "metadata": {"annotations": {"kueue.x-k8s.io/podset-unconstrained-topology": "true"}},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [container],
            "volumes": [{"name": "claim", "persistentVolumeClaim": {"claimName": "muster-store"}}],
        },
    }
    job = {"parallelism": pods, "completions": pods, "backoffLimit": 0, "template": pod}
    labels = {"kueue.x-k8s.io/queue-name": queue, "kueue.x-k8s.io/priority-class": priority}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels},
        "spec": {"replicatedJobs": [{"name": "w", "replicas": 1, "template": {"spec": job}}]},
    }


def pods_of(of: Layout, name: str) -> list[dict[str, Any]]:
    """Return a gang's pods in the order of their rank."""
    label = f"--selector=jobset.sigs.k8s.io/jobset-name={name}"
    pods = kubectl.get(of, "pods", f"--namespace={NAMESPACE}", label)["items"]
    rank = "batch.kubernetes.io/job-completion-index"
    return sorted(pods, key=lambda pod: int(pod["metadata"]["annotations"][rank]))


def phases(of: Layout, name: str) -> list[str]:
    """Return the phases of a gang's pods in the order of their rank."""
    return [pod["status"]["phase"] for pod in pods_of(of, name)]


def condition(of: Layout, kind: str, name: str, of_type: str) -> dict[str, str]:
    """Return a condition of an object; an empty one where it has none of this type."""
    found = kubectl.get(of, kind, name, f"--namespace={NAMESPACE}").get("status", {}).get("conditions", [])
    return next((one for one in found if one["type"] == of_type), {})


def workload_of(of: Layout, name: str) -> str:
    """Return what Kueue calls a gang; nothing before it has seen it."""
    found = kubectl.get(of, "workloads.kueue.x-k8s.io", f"--namespace={NAMESPACE}")["items"]
    for workload in found:
        if any(owner["name"] == name for owner in workload["metadata"].get("ownerReferences", ())):
            return str(workload["metadata"]["name"])
    return ""
