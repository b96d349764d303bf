"""Says at once what can never run on a cluster, and why, before anything is made."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from muster.backends.kubernetes.cluster.facts import Cluster, Gangs, Node, Queue
from muster.backends.kubernetes.cluster.quantities import (
    Amounts,
    but_pods,
    fits,
    how_many,
    is_device,
    pod_requests,
    shown,
    times,
    total,
)
from muster.backends.kubernetes.labels import ROLE
from muster.core.errors import CannotSchedule, SpecError
from muster.core.job import JobSpec

SHARED = "ReadWriteMany"
_MANY = 8


@dataclass(frozen=True, kw_only=True)
class PodSet:
    """The pods of one role. :param needs: of each of them; `gpu_class` those it takes, empty for any."""

    role: str
    count: int
    needs: Amounts
    gpu_class: tuple[str, ...] = ()


def pod_sets(root: Mapping[str, Any], job: JobSpec) -> tuple[PodSet, ...]:
    """Return the pods that a JobSet or Job of this job makes."""
    classes = {role.name: role.resources.gpu_class for role in job.roles}
    specs = [each["template"]["spec"] for each in root["spec"].get("replicatedJobs") or ()] or [root["spec"]]
    found = []
    for spec in specs:
        template = spec["template"]
        role = (template["metadata"].get("labels") or {}).get(ROLE, "")
        count, needs = int(spec.get("parallelism") or 1), pod_requests(template["spec"])
        found.append(PodSet(role=role, count=count, needs=needs, gpu_class=classes.get(role, ())))
    return tuple(found)


def check_place(cluster: Cluster, *, claim: str) -> None:
    """Refuse a namespace or a claim that no job can use.

    :raises SpecError: the namespace is being deleted, or the claim is missing, lost or not shared.
    """
    if cluster.terminating:
        raise SpecError(
            f"namespace {cluster.namespace} is being deleted: use another, or make it again when it is gone"
        )
    found = cluster.claim
    if found is None:
        raise SpecError(
            f"namespace {cluster.namespace} has no PersistentVolumeClaim {claim}: make it, {SHARED}"
        )
    if SHARED not in found.modes:
        raise SpecError(
            f"claim {found.name} has access mode {', '.join(found.modes) or 'none'}: replicas on several nodes "
            f"share it, so it must be {SHARED}; make it on storage that can be mounted by many nodes (NFS, CephFS …)"
        )
    if found.phase == "Lost":
        raise SpecError(f"claim {found.name} has lost its volume: see `kubectl describe pvc {found.name}`")


def choose_queue(cluster: Cluster, wanted: str | None, *, gang: bool) -> Queue | None:
    """Return the queue a job waits in, None where it goes to the scheduler directly.

    :param wanted: the job's or the site's; if there is none and the namespace has one queue, that one.
    :raises SpecError: it does not exist, or there are several and which one cannot be told, or none for a gang.
    """
    if not cluster.kueue:
        if wanted is not None:
            raise SpecError(
                f"queue={wanted!r}: this cluster has no queues: {_no_kueue(cluster)}; name none, here or in the cluster's settings"
            )
        return None
    names = sorted(cluster.queues)
    if wanted is not None and wanted not in cluster.queues:
        raise SpecError(
            f"queue={wanted!r}: namespace {cluster.namespace} has no queue {wanted}; {_there(names)}"
        )
    if wanted is None and len(names) != 1:
        if not names and not gang:
            return None
        who = "a gang" if gang else "a job"
        raise SpecError(f"{who} waits in a queue: name one with queue=; {_there(names)}")
    return cluster.queues[names[0] if wanted is None else wanted]


def check_job(
    cluster: Cluster,
    pod_sets: Sequence[PodSet],
    *,
    queue: Queue | None,
    priority: str | None = None,
    partial_starts: bool = False,
) -> tuple[str, ...]:
    """Refuse what can never run here; return warnings about what may wait until the cluster is changed.

    :param partial_starts: a gang may start in part where nothing keeps it together.
    :raises CannotSchedule: it can never run; the message says what there is.
    :raises SpecError: a gang, class list or priority that this cluster cannot honour.
    """
    _check_gang(cluster, pod_sets, partial_starts=partial_starts)
    _check_classes(cluster, pod_sets)
    _check_priority(cluster, priority)
    if queue is not None:
        _check_quota(cluster, pod_sets, queue)
    if cluster.nodes is not None:
        check_nodes(cluster.nodes, pod_sets)
    told = () if queue is None else _warnings(cluster, pod_sets, queue)
    return (*_hopes(cluster.nodes or (), pod_sets), *told)


def _hopes(nodes: Sequence[Node], pod_sets: Iterable[PodSet]) -> Iterator[str]:
    """Say who waits for devices that no node shows; :func:`check_nodes` has found that some may have them."""
    for pods in pod_sets:
        own = _suiting(nodes, pods)
        names = ", ".join(node.name for node in own if not node.settled)
        if names and sum(how_many(pods.needs, node.room) for node in own) < pods.count:
            yield (
                f"role {pods.role} waits for devices that no node shows now: {names} may have them when it is "
                "ready and its device plugin has registered"
            )


def _warnings(cluster: Cluster, pod_sets: Iterable[PodSet], queue: Queue) -> Iterator[str]:
    if queue.stopped:
        yield f"queue {queue.name} is stopped: {queue.stopped}"
    for pods in pod_sets:
        tried = [cluster.flavors[name].gpu_class for name in queue.limits or () if name in cluster.flavors]
        order = [name for name in dict.fromkeys(tried) if name in pods.gpu_class]
        wanted = [name for name in pods.gpu_class if name in order]
        if order != wanted:
            yield (
                f"role {pods.role} prefers GPU class {' to '.join(wanted)}, and queue {queue.name} tries "
                f"{' before '.join(map(str, order))}: the order of its flavors decides"
            )


def _check_gang(cluster: Cluster, pod_sets: Sequence[PodSet], *, partial_starts: bool) -> None:
    if sum(pods.count for pods in pod_sets) == 1 or cluster.gangs is Gangs.KUEUE:
        return
    if cluster.gangs is Gangs.NONE and not (partial_starts and cluster.job_set):
        missing = [] if cluster.job_set else ["JobSet 0.12 or newer"]
        missing += [] if cluster.kueue else ["Kueue 0.19.2 or newer"]
        raise CannotSchedule(
            f"nothing on this cluster starts a gang whole: install {' and '.join(missing)} "
            "(or, with JobSet, turn on Kubernetes' own PodGroup); with JobSet alone its replicas start one by "
            "one where the cluster's settings say partial_starts"
        )
    listed = [pods for pods in pod_sets if len(pods.gpu_class) > 1]
    if listed:
        raise SpecError(
            f"role {listed[0].role} lists GPU classes {', '.join(listed[0].gpu_class)}: choosing among them is "
            f"Kueue's work, and {_no_kueue(cluster)}; name one class"
        )


def _check_priority(cluster: Cluster, priority: str | None) -> None:
    if priority is not None and cluster.priorities is not None and priority not in cluster.priorities:
        raise SpecError(
            f"priority={priority!r}: there is no such priority; there are {_listed(sorted(cluster.priorities))}: "
            "name one of these, or have the class created (the chart's queues.priorities)"
        )


def _check_classes(cluster: Cluster, pod_sets: Iterable[PodSet]) -> None:
    """Refuse a class that neither a node nor a flavor knows, where both could be seen."""
    if cluster.nodes is None:
        return
    for pods in pod_sets:
        unknown = [name for name in pods.gpu_class if name not in cluster.gpu_classes]
        if unknown:
            raise CannotSchedule(
                f"role {pods.role} asks for GPU class {unknown[0]}, which no node has; "
                f"there are {_listed(sorted(cluster.gpu_classes))}"
            )


def _check_quota(cluster: Cluster, pod_sets: Sequence[PodSet], queue: Queue) -> None:
    """Refuse what the queue's quota can never hold, however empty it is."""
    if queue.limits is None:
        return
    asked = [but_pods(times(pods.needs, pods.count)) for pods in pod_sets]
    for pods, amounts in zip(pod_sets, asked, strict=True):
        _check_covered(pods, amounts, queue)
    for group in queue.groups:
        names = queue.limits[group[0]]
        parts = [{name: amount for name, amount in each.items() if name in names} for each in asked]
        own = [(pods, part) for pods, part in zip(pod_sets, parts, strict=True) if part]
        _check_group(cluster, own, queue, group)


def _check_group(
    cluster: Cluster, asked: Sequence[tuple[PodSet, Amounts]], queue: Queue, group: Sequence[str]
) -> None:
    """Kueue gives each role one flavor of each group; roles of one flavor share its quota."""
    assert queue.limits is not None
    choices = [_flavors(cluster, pods, queue, group) for pods, _ in asked]
    for (pods, amounts), flavors in zip(asked, choices, strict=True):
        if not any(fits(amounts, queue.limits[flavor]) for flavor in flavors):
            raise CannotSchedule(_over_quota(f"role {pods.role}", amounts, flavors, queue))
    parts = [amounts for _, amounts in asked]
    if not any(_together(parts, chosen, queue) for chosen in itertools.product(*choices)):
        flavors = sorted({flavor for chosen in choices for flavor in chosen})
        raise CannotSchedule(_over_quota("the whole gang", total(parts), flavors, queue))


def _check_covered(pods: PodSet, amounts: Amounts, queue: Queue) -> None:
    missing = sorted(set(amounts) - queue.covered)
    if missing:
        raise CannotSchedule(
            f"queue {queue.name} has no quota for {', '.join(missing)}, which role {pods.role} asks for; "
            f"it has some for {_listed(sorted(queue.covered))}"
        )


def _flavors(cluster: Cluster, pods: PodSet, queue: Queue, group: Sequence[str]) -> list[str]:
    """The flavors of a group that Kueue may give a role: those of its classes, or all where it names none."""
    found = _of_class(cluster, pods, queue, group)
    if not cluster.topology:
        return found
    placed = [name for name in found if name not in cluster.flavors or cluster.flavors[name].topology]
    if not placed:
        raise CannotSchedule(
            f"queue {queue.name} has no flavor for role {pods.role} on which Kueue looks for nodes before it "
            f"lets a gang in: name a Topology in flavor {' or '.join(found)} (topologyName)"
        )
    return placed


def _of_class(cluster: Cluster, pods: PodSet, queue: Queue, group: Sequence[str]) -> list[str]:
    classes = {name: cluster.flavors[name].gpu_class for name in group if name in cluster.flavors}
    if not pods.gpu_class or not any(classes.values()):  # it has nothing to do with classes of cards
        return list(group)
    of_class = [name for name in classes if classes[name] in pods.gpu_class]
    if not of_class:
        raise CannotSchedule(
            f"queue {queue.name} has no quota for GPU class {' or '.join(pods.gpu_class)}, which role "
            f"{pods.role} asks for; its flavors are {_listed(sorted(group))}"
        )
    return of_class


def _together(asked: Sequence[Amounts], chosen: Sequence[str], queue: Queue) -> bool:
    assert queue.limits is not None
    return all(
        fits(
            total(part for part, of in zip(asked, chosen, strict=True) if of == flavor), queue.limits[flavor]
        )
        for flavor in set(chosen)
    )


def _over_quota(who: str, asked: Amounts, flavors: Sequence[str], queue: Queue) -> str:
    assert queue.limits is not None
    most = {
        name: max((queue.limits[flavor].get(name, 0.0) for flavor in flavors), default=0.0) for name in asked
    }
    over = [name for name in asked if asked[name] > most[name]] or list(asked)
    wanted = ", ".join(shown(name, asked[name]) for name in sorted(over))
    limits = ", ".join(shown(name, most[name]) for name in sorted(over))
    return (
        f"{who} asks for {wanted}, and queue {queue.name} can never give more than {limits} "
        f"(flavor {' or '.join(flavors)}): ask for less, or for more quota"
    )


def check_nodes(nodes: Sequence[Node], pod_sets: Sequence[PodSet]) -> None:
    """Refuse what the nodes could not hold even if they were empty.

    Of devices nothing is refused that a node may have which is not settled.

    :raises CannotSchedule: they cannot.
    """
    for pods in pod_sets:
        own = _suiting(nodes, pods)
        room = sum(how_many(_certain(pods.needs, [node]), node.room) for node in own)
        if room == 0:
            raise CannotSchedule(_no_node(pods, own))
        if room < pods.count:
            raise CannotSchedule(
                f"role {pods.role} has {pods.count} replicas of {_needs(pods.needs)} each, and "
                f"the {len(own)} nodes that suit it have room for {room} even when they are empty"
            )
    usable = [node for node in nodes if not node.control_plane]
    asked = _certain(total(times(pods.needs, pods.count) for pods in pod_sets), usable)
    there = total(node.room for node in usable)
    if not fits(asked, there):
        over = next(name for name in sorted(asked) if asked[name] > there.get(name, 0.0))
        raise CannotSchedule(
            f"the whole gang asks for {shown(over, asked[over])}, and all nodes together have "
            f"{shown(over, there.get(over, 0.0))}"
        )


def _suiting(nodes: Iterable[Node], pods: PodSet) -> list[Node]:
    classes = pods.gpu_class
    return [node for node in nodes if not node.control_plane and (not classes or node.gpu_class in classes)]


def _certain(needs: Amounts, nodes: Iterable[Node]) -> dict[str, float]:
    """Of what is needed, that of which these nodes show all they have."""
    settled = all(node.settled for node in nodes)
    return {name: amount for name, amount in needs.items() if settled or not is_device(name)}


def _no_node(pods: PodSet, nodes: Sequence[Node]) -> str:
    most = {name: max((node.room.get(name, 0.0) for node in nodes), default=0.0) for name in pods.needs}
    over = [name for name in sorted(pods.needs) if pods.needs[name] > most[name]]
    suited = f"of class {' or '.join(pods.gpu_class)} " if pods.gpu_class else ""
    start = f"one replica of role {pods.role} asks for {_needs(pods.needs)}"
    if not over:
        return f"{start}, and none of the {len(nodes)} nodes {suited}has all of that"
    return f"{start}; the largest node {suited}has {', '.join(shown(name, most[name]) for name in over)}"


def _needs(needs: Amounts) -> str:
    return ", ".join(shown(name, amount) for name, amount in sorted(but_pods(needs).items()))


def _no_kueue(cluster: Cluster) -> str:
    return "Kubernetes' PodGroup knows no queues" if cluster.pod_group else "Kueue is not installed"


def _there(names: Sequence[str]) -> str:
    return f"there are {_listed(names)}" if names else "there is none: make a LocalQueue"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MANY} more" if len(names) > _MANY else ""
    return (", ".join(names[:_MANY]) or "none") + more
