"""Who has the GPUs, who waits for them and why: pure, from nodes, pods and Kueue's Workloads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from muster.backends.capacity import NO_CLASS, Cards, Gpus, QueuePlace, Share, WaitingJob
from muster.backends.kubernetes.cluster.facts import Flavor, Node, condition, holds, quotas
from muster.backends.kubernetes.cluster.quantities import (
    but_pods,
    pod_requests,
    pod_set_requests,
    quantity,
    total,
)
from muster.backends.kubernetes.labels import JOB, NAME, QUEUE
from muster.backends.kubernetes.state.observe import waits_for
from muster.backends.kubernetes.state.seen import seconds

_LOCAL_QUEUE = "kueue.x-k8s.io/local-queue-name"
_ENDED = ("Succeeded", "Failed")


def gpus(nodes: Iterable[Mapping[str, Any]], pods: Iterable[Mapping[str, Any]], *, resource: str) -> Gpus:
    """Count cards in use by class, node and team.

    A pod holds its cards from the moment it has a node until it has ended. A team is a namespace and,
    where Kueue says so, its queue.

    :param resource: what a card is called, such as ``nvidia.com/gpu``.
    """
    cards = {node.name: node for node in map(Node.of, nodes) if node.room.get(resource)}
    used, teams = Counter[str](), Counter[str]()
    for pod in pods:
        node, count = pod["spec"].get("nodeName"), cards_of(pod, resource)
        if count and node and pod.get("status", {}).get("phase") not in _ENDED:
            used[node] += count
            teams[_team(pod)] += count
    by_node = tuple(
        Cards(
            name=name,
            total=int(node.room[resource]),
            used=used[name],
            gpu_class=node.gpu_class or NO_CLASS,
            why_not=node.why_not,
        )
        for name, node in sorted(cards.items())
    )
    return Gpus(
        by_class=_by_class(by_node),
        by_node=by_node,
        by_team=tuple(Cards(name=team, used=count) for team, count in sorted(teams.items())),
    )


def cards_of(pod: Mapping[str, Any], resource: str) -> int:
    """Return how many cards a pod asks for."""
    return int(pod_requests(pod["spec"]).get(resource, 0))


def _team(pod: Mapping[str, Any]) -> str:
    labels = pod["metadata"].get("labels") or {}
    queue = labels.get(_LOCAL_QUEUE) or labels.get(QUEUE)
    namespace = str(pod["metadata"]["namespace"])
    return f"{namespace}/{queue}" if queue else namespace


def _by_class(nodes: Sequence[Cards]) -> tuple[Cards, ...]:
    """Sum nodes by class. Cards of a node that takes no pods count as neither free nor used."""
    found = []
    for name in sorted({node.gpu_class for node in nodes}):
        own = [node for node in nodes if node.gpu_class == name]
        used = sum(node.used for node in own)
        free = sum(node.free for node in own)
        found.append(Cards(name=name, total=used + free, used=used, gpu_class=name))
    return tuple(found)


def shares(
    cluster_queues: Iterable[Mapping[str, Any]], flavors: Mapping[str, Flavor], *, resource: str
) -> tuple[Share, ...]:
    """Return each team's share of each class, as Kueue counts it: whatever namespace the pods are in.

    :param flavors: by name; they say which class each stands for.
    """
    found = []
    for queue in cluster_queues:
        held = {
            each["name"]: quantities
            for each in (queue.get("status") or {}).get("flavorsReservation") or ()
            for quantities in each.get("resources") or ()
            if quantities["name"] == resource
        }
        for flavor, quota in quotas(queue):
            if quota["name"] == resource:
                found.append(_share(queue["metadata"]["name"], flavor, quota, held.get(flavor, {}), flavors))
    return tuple(sorted(found, key=lambda share: (share.team, share.flavor)))


def _share(
    team: str, flavor: str, quota: Mapping[str, Any], held: Mapping[str, Any], flavors: Mapping[str, Flavor]
) -> Share:
    known = flavors.get(flavor)
    return Share(
        team=team,
        flavor=flavor,
        gpu_class=(known and known.gpu_class) or NO_CLASS,
        quota=int(quantity(quota.get("nominalQuota", 0))),
        used=int(quantity(held.get("total", 0))),
        borrowed=int(quantity(held.get("borrowed", 0))),
    )


def waiting(
    workloads: Iterable[Mapping[str, Any]],
    *,
    owners: Iterable[Mapping[str, Any]] = (),
    places: Mapping[str, QueuePlace] | None = None,
    flavors: Mapping[str, Flavor] | None = None,
) -> tuple[WaitingJob, ...]:
    """Return what waits, queue by queue, the next to leave it first.

    :param owners: the JobSets and Jobs that the workloads stand for; they say which job each is.
    :param places: by ``NAMESPACE/NAME`` of the Workload, from :func:`asked_places`; else they are reckoned from the
        workloads given, which is Kueue's own order unless one was put back for not starting.
    :param flavors: by name, to tell a gang of those alone that it may get.
    """
    waits = held(workloads)
    known = reckoned_places(waits) if places is None else places
    heads = {str(each["metadata"].get("uid")): each["metadata"] for each in owners}
    found = [_waiting(each, heads, known, waits_for(each, flavors)) for each in waits]
    return tuple(sorted(found, key=_order))


def held(workloads: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the workloads that wait."""
    return [each for each in workloads if not holds(each, "Admitted") and not holds(each, "Finished")]


def runs(workload: Mapping[str, Any]) -> bool:
    """Whether its queue has let a workload in, and it has not ended."""
    return holds(workload, "Admitted") and not holds(workload, "Finished")


def queue_of(workload: Mapping[str, Any]) -> str:
    """Return the LocalQueue that a workload asks for; empty where it asks for none, as Kueue may let foreign ones."""
    return str(workload["spec"].get("queueName") or "")


def _waiting(
    workload: Mapping[str, Any],
    heads: Mapping[str, Mapping[str, Any]],
    places: Mapping[str, QueuePlace],
    why: str,
) -> WaitingJob:
    metadata, spec = workload["metadata"], workload["spec"]
    owner: Mapping[str, Any] = next(iter(metadata.get("ownerReferences") or ()), {})
    head = heads.get(str(owner.get("uid")), {})
    return WaitingJob(
        name=owner.get("name") or metadata["name"],
        namespace=metadata["namespace"],
        queue=queue_of(workload),
        priority=int(spec.get("priority") or 0),
        since=seconds(metadata.get("creationTimestamp")) or 0.0,
        why=why,
        needs=MappingProxyType(total(map(pod_set_requests, spec.get("podSets") or ()))),
        title=(head.get("annotations") or {}).get(NAME, ""),
        job_id=(head.get("labels") or {}).get(JOB),
        place=places.get(_name(workload)),
    )


def _order(each: WaitingJob) -> tuple[object, ...]:
    return each.namespace, each.queue, each.place.number if each.place else 0, -each.priority, each.since


def unplaced(
    pods: Iterable[Mapping[str, Any]], *, owners: Iterable[Mapping[str, Any]] = ()
) -> tuple[WaitingJob, ...]:
    """Return the jobs that wait for nodes where no queue holds them: those of whose pods none has one.

    :param pods: of our jobs, those that have not ended. :param owners: their JobSets and Jobs.
    """
    jobs: dict[str, list[Mapping[str, Any]]] = {}
    for pod in pods:
        jobs.setdefault(pod["metadata"]["labels"][JOB], []).append(pod)
    heads = {(each["metadata"].get("labels") or {}).get(JOB): each["metadata"] for each in owners}
    waits = [
        _without_node(own, heads.get(job_id) or own[0]["metadata"])
        for job_id, own in jobs.items()
        if not any(pod["spec"].get("nodeName") for pod in own)
    ]
    return tuple(sorted(waits, key=_order))


def _without_node(pods: Sequence[Mapping[str, Any]], head: Mapping[str, Any]) -> WaitingJob:
    said = (condition(pod, "PodScheduled").get("message") for pod in pods)
    needs = but_pods(total(pod_requests(pod["spec"]) for pod in pods))
    return WaitingJob(
        name=head["name"],
        namespace=head["namespace"],
        queue="",
        priority=int(pods[0]["spec"].get("priority") or 0),
        since=min(seconds(pod["metadata"].get("creationTimestamp")) or 0.0 for pod in pods),
        why=next((text for text in said if text), "the scheduler has not looked yet"),
        needs=MappingProxyType(needs),
        title=(head.get("annotations") or {}).get(NAME, ""),
        job_id=pods[0]["metadata"]["labels"][JOB],
    )


def reckoned_places(workloads: Iterable[Mapping[str, Any]]) -> dict[str, QueuePlace]:
    """Return the place of each waiting workload in its LocalQueue, by ``NAMESPACE/NAME``: priority, then age.

    Ages are whole seconds: of those made in the same one only Kueue knows the order. What is in no queue has none.
    """
    queues: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for each in held(workloads):
        if queue := queue_of(each):
            queues.setdefault((each["metadata"]["namespace"], queue), []).append(each)
    found: dict[str, QueuePlace] = {}
    for waits in queues.values():
        waits.sort(key=_rank)
        for number, each in enumerate(waits, start=1):
            found[_name(each)] = QueuePlace(number=number, of=len(waits))
    return found


def _name(workload: Mapping[str, Any]) -> str:
    return f"{workload['metadata']['namespace']}/{workload['metadata']['name']}"


def _rank(workload: Mapping[str, Any]) -> tuple[object, ...]:
    metadata = workload["metadata"]
    age = seconds(metadata.get("creationTimestamp")) or 0.0
    if condition(workload, "Evicted").get("reason") == "PodsReadyTimeout":
        age = seconds(condition(workload, "Evicted").get("lastTransitionTime")) or age
    return -int(workload["spec"].get("priority") or 0), age, metadata["name"]


def asked_places(summary: Mapping[str, Any]) -> dict[str, QueuePlace]:
    """Return places by ``NAMESPACE/NAME`` as Kueue's visibility server tells them.

    :param summary: what it serves as ``localqueues/NAME/pendingworkloads``.
    """
    items = summary.get("items") or ()
    return {
        _name(each): QueuePlace(number=int(each["positionInLocalQueue"]) + 1, of=len(items)) for each in items
    }
