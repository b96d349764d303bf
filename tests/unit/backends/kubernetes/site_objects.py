"""Objects of a small site as its API gives them: three classes of nodes, two teams of one cohort."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.cluster.furniture import objects

from muster.backends.kubernetes.cluster.facts import Cluster, Flavor, Node, Queue, VolumeClaim, limits_of

Document = dict[str, Any]


QUEUES = ("Topology", "ResourceFlavor", "ClusterQueue", "LocalQueue", "WorkloadPriorityClass")


def node(
    name: str,
    *,
    gpu_class: str = "cpu",
    gpus: int = 0,
    cpus: int = 16,
    memory: str = "32783832Ki",
    ready: bool = True,
    starting: bool = False,
    cordoned: bool = False,
    taints: Sequence[Document] = (),
) -> Document:
    """Return a ``Node`` as a kubelet registers it.

    :param starting: its kubelet has started again, and no device plugin has registered with it so far.
    """
    room = {
        "cpu": str(cpus),
        "ephemeral-storage": "38037888Ki",
        "hugepages-2Mi": "0",
        "memory": memory,
        "pods": "110",
    }
    if gpus:
        room["nvidia.com/gpu"] = "0" if starting else str(gpus)
    spec: Document = {"podCIDR": "10.78.1.0/24", "podCIDRs": ["10.78.1.0/24"]}
    if cordoned:
        spec["unschedulable"] = True
        taints = [*taints, {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]
    if taints:
        spec["taints"] = list(taints)
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "uid": f"uid-of-{name}",
            "resourceVersion": "4711",
            "creationTimestamp": "2026-11-21T17:00:00Z",
            "labels": {
                "beta.kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                "kubernetes.io/hostname": name,
                "muster.dev/gpu-class": gpu_class,
            },
        },
        "spec": spec,
        "status": {
            "capacity": room,
            "allocatable": room,
            "addresses": [{"type": "InternalIP", "address": "10.77.0.11"}],
            "conditions": [
                {"type": "MemoryPressure", "status": "False", "reason": "KubeletHasSufficientMemory"},
                {
                    "type": "Ready",
                    "status": "True" if ready else "Unknown",
                    "reason": "KubeletReady" if ready else "NodeStatusUnknown",
                    "lastTransitionTime": "2026-11-21T17:00:10Z",
                },
            ],
        },
    }


NODES = (
    node("cpu-0"),
    node("a100-0", gpu_class="gpu-a100", gpus=8),
    node("a100-1", gpu_class="gpu-a100", gpus=8),
    node("k80-0", gpu_class="gpu-k80", gpus=4),
)


def claim(*modes: str, phase: str = "Bound") -> Document:
    """Return the store's ``PersistentVolumeClaim``."""
    (found,) = objects("PersistentVolumeClaim")
    found["spec"]["accessModes"] = list(modes)
    return {**found, "status": {"phase": phase, "accessModes": list(modes) if phase == "Bound" else []}}


def cluster(**other: Any) -> Cluster:
    """Return the site as discovery finds it; `other` facts where something is to be different."""
    limits = limits_of(objects("ClusterQueue"), ())
    facts: dict[str, Any] = {
        "namespace": "muster-jobs",
        "job_set": True,
        "kueue": True,
        "topology": True,
        "pod_group": True,
        "claim": VolumeClaim.of(claim("ReadWriteMany")),
        "queues": {each["metadata"]["name"]: Queue.of(each, limits) for each in objects("LocalQueue")},
        "flavors": {each["metadata"]["name"]: Flavor.of(each) for each in objects("ResourceFlavor")},
        "priorities": frozenset(each["metadata"]["name"] for each in objects("WorkloadPriorityClass")),
        "nodes": tuple(map(Node.of, NODES)),
    }
    return Cluster(**(facts | other))
