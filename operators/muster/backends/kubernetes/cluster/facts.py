"""What a cluster is and has, as far as it decides whether a job can ever run: frozen, from documents."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Any

from muster.backends.kubernetes.api.kinds import Kind
from muster.backends.kubernetes.cluster.quantities import Amounts, amounts, is_device, quantity
from muster.backends.kubernetes.labels import GPU_CLASS
from muster.core.job import NORMAL

_CONTROL_PLANE = "node-role.kubernetes.io/control-plane"
_KEEPS_OFF = ("NoSchedule", "NoExecute")


class Gangs(str, Enum):
    """What sees to it that a gang starts whole or not at all."""

    KUEUE = "Kueue"
    POD_GROUP = "PodGroup"
    NONE = "nothing"


@dataclass(frozen=True, kw_only=True)
class Node:
    """One node. :param room: what pods may use of it in all. :param why_not: why it takes no pods now, if it does not."""

    name: str
    room: Amounts
    gpu_class: str | None = None
    ready: bool = True
    control_plane: bool = False
    why_not: str = ""

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
            why_not=_why_not(document),
            control_plane=any(
                taint.get("key") == _CONTROL_PLANE and taint.get("effect") in _KEEPS_OFF for taint in taints
            ),
        )

    @property
    def has_cards(self) -> bool:
        """Whether it has devices of any kind."""
        return any(self._devices)

    @property
    def settled(self) -> bool:
        """Whether the devices that it shows are all it has: it is ready, and shows none as 0.

        A kubelet that has started again shows 0 of each, and a new one none, until their device plugins have
        registered with it. What asks for devices and may suit a node that is not settled is left to wait.
        """
        return self.ready and all(self._devices)

    @property
    def _devices(self) -> tuple[float, ...]:
        return tuple(amount for name, amount in self.room.items() if is_device(name))


def _why_not(node: Mapping[str, Any]) -> str:
    """Return why a node takes no pods, one line; empty where it takes some."""
    ready = condition(node, "Ready")
    if ready.get("status") != "True":
        return f"not ready: {ready.get('message') or ready.get('reason') or 'its kubelet has said nothing yet'}".rstrip(
            "."
        )
    return "cordoned" if (node.get("spec") or {}).get("unschedulable") else ""


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
    def of(cls, local: Mapping[str, Any], limits: Mapping[str, Mapping[str, Amounts]]) -> Queue:
        """Read a ``LocalQueue``. :param limits: of each ClusterQueue that may be read (:func:`limits_of`)."""
        cluster_queue = local["spec"].get("clusterQueue", "")
        return cls(
            name=local["metadata"]["name"],
            cluster_queue=cluster_queue,
            limits=limits.get(cluster_queue),
            stopped=_stopped(local),
        )

    @property
    def covered(self) -> frozenset[str]:
        """The resources that it has quota for."""
        return frozenset(name for flavor in (self.limits or {}).values() for name in flavor)

    @property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """Its flavors by resource group: those of one cover the same resources, those of two none in common."""
        found: dict[frozenset[str], tuple[str, ...]] = {}
        for name, resources in (self.limits or {}).items():
            covered = frozenset(resources)
            found[covered] = (*found.get(covered, ()), name)
        return tuple(found.values())


def _stopped(queue: Mapping[str, Any]) -> str:
    active = condition(queue, "Active")
    if active.get("status") != "False":
        return ""
    return str(active.get("message") or active.get("reason") or "it is not active")


def limits_of(
    cluster_queues: Iterable[Mapping[str, Any]], cohorts: Iterable[Mapping[str, Any]] | None
) -> dict[str, Mapping[str, Amounts]]:
    """Return, per ClusterQueue and flavor, the most that one workload can ever get of each resource.

    That is its own quota and what it may borrow: the others of its cohort lend what they own. Cohorts
    with quota of their own, or in a tree of cohorts, count as endless: Kueue reckons with those.

    :param cohorts: None where they may not be read.
    """
    queues = list(cluster_queues)
    endless = None if cohorts is None else {each["metadata"]["name"] for each in cohorts if _rich(each)}
    return {each["metadata"]["name"]: MappingProxyType(_limits(each, queues, endless)) for each in queues}


def _rich(cohort: Mapping[str, Any]) -> bool:
    spec = cohort.get("spec") or {}
    return bool(spec.get("parentName") or spec.get("resourceGroups"))


def _limits(
    queue: Mapping[str, Any], queues: Iterable[Mapping[str, Any]], endless: set[str] | None
) -> dict[str, Amounts]:
    cohort = queue["spec"].get("cohortName")
    lenders = [
        each for each in queues if cohort and each is not queue and each["spec"].get("cohortName") == cohort
    ]
    unknown = bool(cohort) and (endless is None or cohort in endless)
    limits: dict[str, dict[str, float]] = {}
    for flavor, resource in quotas(queue):
        lent = math.inf if unknown else sum(_lent(each, flavor, resource["name"]) for each in lenders)
        borrowed = min(lent, quantity(resource["borrowingLimit"])) if "borrowingLimit" in resource else lent
        own = limits.setdefault(flavor, {})
        own[resource["name"]] = quantity(resource.get("nominalQuota", 0)) + borrowed
    return {name: MappingProxyType(resources) for name, resources in limits.items()}


def quotas(queue: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield a ClusterQueue's quotas with the flavor that each is of."""
    for group in queue["spec"].get("resourceGroups") or ():
        for flavor in group.get("flavors") or ():
            for resource in flavor.get("resources") or ():
                yield flavor["name"], resource


def _lent(queue: Mapping[str, Any], flavor: str, name: str) -> float:
    """What a ClusterQueue leaves to others when it needs nothing itself."""
    for other, resource in quotas(queue):
        if other == flavor and resource["name"] == name:
            nominal = quantity(resource.get("nominalQuota", 0))
            return min(nominal, quantity(resource["lendingLimit"])) if "lendingLimit" in resource else nominal
    return 0.0


@dataclass(frozen=True, kw_only=True)
class VolumeClaim:
    """The PersistentVolumeClaim that the store lies on."""

    name: str
    modes: tuple[str, ...]
    phase: str

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> VolumeClaim:
        """Read a ``PersistentVolumeClaim``: what it was given, else what it asks for."""
        status = document.get("status") or {}
        modes = status.get("accessModes") or document["spec"].get("accessModes") or ()
        return cls(name=document["metadata"]["name"], modes=tuple(modes), phase=status.get("phase", ""))


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """What was found at one look.

    :param nodes: None where these credentials may not list them; then nothing is checked against them.
    :param serving: what serving platforms make model servers of, as far as the API server knows it.
    :param terminating: the namespace is being deleted.
    :param claim: None where there is none of that name.
    :param priorities: the names that a job's priority may have: Kueue's classes where the namespace has a queue, else
        Kubernetes' own; None where these credentials may not list them.
    """

    namespace: str
    job_set: bool = False
    kueue: bool = False
    topology: bool = False
    pod_group: bool = False
    serving: frozenset[Kind] = frozenset()
    gateway_api: bool = False
    terminating: bool = False
    claim: VolumeClaim | None = None
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

    def priority(self, wanted: str | None) -> str | None:
        """Return the priority of a job: as on one machine `normal` where it names none, if there is such a class.

        Without a class a job counts 0, which is less than ``low``: trials of a search would take its place.
        """
        return NORMAL if wanted is None and NORMAL in (self.priorities or ()) else wanted

    @property
    def gpu_classes(self) -> frozenset[str]:
        """Every class of card that a node has, or may have when it is settled, or a flavor stands for."""
        nodes = self.nodes or ()
        with_cards = {node.gpu_class for node in nodes if node.has_cards or not node.settled}
        without = {node.gpu_class for node in nodes} - with_cards
        of_flavors = {flavor.gpu_class for flavor in self.flavors.values()} - without
        return frozenset(name for name in with_cards | of_flavors if name)


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
