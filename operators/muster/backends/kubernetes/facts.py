"""What a cluster is and has, as far as it decides whether a job can ever run: frozen, from documents."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Any

from muster.backends.kubernetes.labels import GPU_CLASS
from muster.backends.kubernetes.quantities import Amounts, amounts, quantity

_CONTROL_PLANE = "node-role.kubernetes.io/control-plane"
_KEEPS_OFF = ("NoSchedule", "NoExecute")


class Gangs(str, Enum):
    """What sees to it that a gang starts whole or not at all."""

    KUEUE = "Kueue"
    POD_GROUP = "PodGroup"
    NONE = "nothing"


@dataclass(frozen=True, kw_only=True)
class Node:
    """One node. :param room: what pods may use of it in all."""

    name: str
    room: Amounts
    gpu_class: str | None = None
    ready: bool = True
    cordoned: bool = False
    control_plane: bool = False

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Node:
        """Read a ``Node``."""
        spec, labels = document.get("spec") or {}, document["metadata"].get("labels") or {}
        taints = spec.get("taints") or ()
        return cls(
            name=document["metadata"]["name"],
            room=MappingProxyType(amounts(document.get("status", {}).get("allocatable"))),
            gpu_class=labels.get(GPU_CLASS),
            ready=condition(document, "Ready").get("status") == "True",
            cordoned=bool(spec.get("unschedulable")),
            control_plane=any(
                taint.get("key") == _CONTROL_PLANE and taint.get("effect") in _KEEPS_OFF for taint in taints
            ),
        )


@dataclass(frozen=True, kw_only=True)
class Flavor:
    """One of Kueue's ResourceFlavors. :param topology: it places pods by that; None where it only counts."""

    name: str
    gpu_class: str | None = None
    topology: str | None = None

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Flavor:
        """Read a ``ResourceFlavor``."""
        spec = document.get("spec") or {}
        return cls(
            name=document["metadata"]["name"],
            gpu_class=(spec.get("nodeLabels") or {}).get(GPU_CLASS),
            topology=spec.get("topologyName"),
        )


@dataclass(frozen=True, kw_only=True)
class Queue:
    """A LocalQueue and the quota behind it.

    :param limits: per flavor the most that one workload can ever get of each resource, infinite
        where it may borrow without limit; None where the ClusterQueue may not be read.
    :param stopped: why nothing leaves it now, one line; empty where all is well.
    """

    name: str
    cluster_queue: str
    limits: Mapping[str, Amounts] | None = None
    stopped: str = ""

    @classmethod
    def of(cls, local: Mapping[str, Any], cluster: Mapping[str, Any] | None) -> Queue:
        """Read a ``LocalQueue`` and its ``ClusterQueue``."""
        return cls(
            name=local["metadata"]["name"],
            cluster_queue=local["spec"].get("clusterQueue", ""),
            limits=None if cluster is None else MappingProxyType(_limits(cluster["spec"])),
            stopped=_stopped(local),
        )

    @property
    def covered(self) -> frozenset[str]:
        """The resources that it has quota for."""
        return frozenset(name for flavor in (self.limits or {}).values() for name in flavor)


def _stopped(queue: Mapping[str, Any]) -> str:
    active = condition(queue, "Active")
    if active.get("status") != "False":
        return ""
    return str(active.get("message") or active.get("reason") or "it is not active")


def _limits(spec: Mapping[str, Any]) -> dict[str, Amounts]:
    in_cohort = bool(spec.get("cohortName"))
    limits: dict[str, dict[str, float]] = {}
    for group in spec.get("resourceGroups") or ():
        for flavor in group.get("flavors") or ():
            of_flavor = limits.setdefault(flavor["name"], {})
            for resource in flavor.get("resources") or ():
                of_flavor[resource["name"]] = _limit(resource, in_cohort=in_cohort)
    return {name: MappingProxyType(resources) for name, resources in limits.items()}


def _limit(resource: Mapping[str, Any], *, in_cohort: bool) -> float:
    """The most that can ever be had: without a cohort there is nobody to borrow from."""
    nominal = quantity(resource.get("nominalQuota", 0))
    if not in_cohort:
        return nominal
    borrowing = resource.get("borrowingLimit")
    return math.inf if borrowing is None else nominal + quantity(borrowing)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The PersistentVolumeClaim that the store lies on."""

    name: str
    modes: tuple[str, ...]
    phase: str

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Claim:
        """Read a ``PersistentVolumeClaim``: what it was given, else what it asks for."""
        status = document.get("status") or {}
        modes = status.get("accessModes") or document["spec"].get("accessModes") or ()
        return cls(name=document["metadata"]["name"], modes=tuple(modes), phase=status.get("phase", ""))


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """What was found at one look.

    :param nodes: None where these credentials may not list them; then nothing is checked against them.
    :param terminating: the namespace is being deleted.
    :param claim: None where there is none of that name.
    """

    namespace: str
    job_set: bool = False
    kueue: bool = False
    topology: bool = False
    visibility: bool = False
    pod_group: bool = False
    terminating: bool = False
    claim: Claim | None = None
    queues: Mapping[str, Queue] = field(default_factory=dict)
    flavors: Mapping[str, Flavor] = field(default_factory=dict)
    priorities: frozenset[str] | None = None
    nodes: tuple[Node, ...] | None = None

    @property
    def gangs(self) -> Gangs:
        """What starts gangs whole here."""
        if self.job_set and self.kueue:
            return Gangs.KUEUE
        return Gangs.POD_GROUP if self.job_set and self.pod_group else Gangs.NONE

    @property
    def gpu_classes(self) -> frozenset[str]:
        """Every class of card that a node has or a flavor stands for."""
        of_nodes = {node.gpu_class for node in self.nodes or ()}
        of_flavors = {flavor.gpu_class for flavor in self.flavors.values()}
        return frozenset(name for name in of_nodes | of_flavors if name)


def condition(document: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """Return a document's condition of that type; empty where it has none."""
    for each in (document.get("status") or {}).get("conditions") or ():
        if each.get("type") == kind:
            return dict(each)
    return {}


def holds(document: Mapping[str, Any], kind: str) -> bool:
    """Whether a document's condition of that type is true."""
    return condition(document, kind).get("status") == "True"


def named(documents: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return documents by name."""
    return {document["metadata"]["name"]: document for document in documents}
