"""Checks of a cluster for gangs: their claim, queue and cards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from muster.backends.kubernetes.cluster.discovery import serves
from muster.backends.kubernetes.cluster.facts import Gangs
from muster.backends.kubernetes.cluster.feasibility import check_place, choose_queue
from muster.backends.kubernetes.lifecycle.submitting import rehearse
from muster.core.check import Check, bad, ok, warn
from muster.core.errors import Forbidden, MusterError, SpecError
from muster.core.job import NORMAL

if TYPE_CHECKING:
    from muster.backends.kubernetes.api.client import Client
    from muster.backends.kubernetes.cluster.facts import Cluster, Queue
    from muster.backends.kubernetes.site import ClusterSite


def gang_checks(cluster: Cluster, *, client: Client, site: ClusterSite) -> Iterator[Check]:
    """Yield the checks for a gang of this site: the claim first, and last a dry run of a gang."""
    yield _claim(cluster, site)
    yield _gangs(cluster, site)
    if cluster.kueue:
        yield _queue(cluster, site)
        yield _flavors(cluster)
        yield _priorities(cluster)
        yield _places(client)
    yield _gpus(cluster, site.gpu_resource)
    yield _gang(cluster, client, site)


def _claim(cluster: Cluster, site: ClusterSite) -> Check:
    name = site.claim
    try:
        check_place(cluster, claim=name)
    except SpecError as error:
        return bad("claim", error, "jobs of several nodes read and write the store through it")
    assert cluster.claim is not None
    modes = ", ".join(cluster.claim.modes)
    if cluster.claim.phase != "Bound":
        return warn(
            "claim",
            f"{name}, {modes}, is {cluster.claim.phase or 'not bound'}",
            "no pod starts before it is bound to a volume",
        )
    return ok("claim", f"{name}, {modes}, bound")


def _gangs(cluster: Cluster, site: ClusterSite) -> Check:
    there = {"JobSet": cluster.job_set, "Kueue": cluster.kueue, "PodGroup": cluster.pod_group}
    found = ", ".join(name for name, yes in there.items() if yes) or "none of JobSet, Kueue and PodGroup"
    if cluster.gangs is Gangs.NONE:
        missing = [name for name in ("JobSet", "Kueue") if not there[name]]
        if site.partial_starts and cluster.job_set:
            return warn(
                "gangs",
                f"{found}: replicas start one by one (partial_starts is set)",
                f"install {' and '.join(missing)}: two gangs may each hold what the other waits for",
            )
        return bad(
            "gangs",
            f"{found}: nothing starts a gang whole",
            f"install {' and '.join(missing)}; jobs of one replica run without",
        )
    if cluster.gangs is Gangs.POD_GROUP:
        return warn(
            "gangs",
            f"{found}: the scheduler starts gangs whole",
            "install Kueue for queues, quotas, priorities and lists of GPU classes",
        )
    return ok("gangs", f"{found}: Kueue starts gangs whole")


def _queue(cluster: Cluster, site: ClusterSite) -> Check:
    try:
        queue = choose_queue(cluster, site.queue, gang=True)
    except SpecError as error:
        if site.queue is None and cluster.queues:
            return warn(
                "queue",
                f"the cluster file names no queue; there are {', '.join(sorted(cluster.queues))}",
                "set queue there, or in each Dag",
            )
        return bad("queue", error, "create a LocalQueue of that name, or set queue to one that exists")
    assert queue is not None
    if queue.stopped:
        return bad(
            "queue",
            f"{queue.name} is stopped: {queue.stopped}",
            f"see `kubectl describe clusterqueue {queue.cluster_queue}`",
        )
    return ok("queue", f"{queue.name}{_quota(queue)}")


def _quota(queue: Queue) -> str:
    if queue.limits is None:
        return ", its quota may not be read"
    return f" of {queue.cluster_queue}, with quota of {', '.join(queue.limits) or 'nothing'}"


def _flavors(cluster: Cluster) -> Check:
    flavors = cluster.flavors.values()
    if not flavors:
        return warn(
            "flavors",
            "this account may read none",
            "a ResourceFlavor for each class of nodes gives jobs their GPU class",
        )
    loose = [flavor.name for flavor in flavors if flavor.topology is None]
    if loose:
        return bad(
            "flavors",
            f"{', '.join(loose)} without a topologyName",
            "name a Topology: without one Kueue only counts resources, and pods of a gang may find no node",
        )
    return ok("flavors", f"{', '.join(cluster.flavors)}, placed by their topology")


def _priorities(cluster: Cluster) -> Check:
    if cluster.priorities is None:
        return warn(
            "priorities",
            "this account may not read them",
            "see the check `reading`: a job that names no priority counts 0 then, less than low, and a misspelt one is "
            "found only by Kueue, after the job was submitted",
        )
    if not cluster.priorities:
        return warn(
            "priorities",
            "none",
            "a job with a priority is refused: create WorkloadPriorityClasses, or set the chart's queues.priorities",
        )
    found = ", ".join(sorted(cluster.priorities))
    if NORMAL not in cluster.priorities:
        return warn(
            "priorities",
            f"{found}, and no {NORMAL}",
            f"create a WorkloadPriorityClass {NORMAL}: without it a job that names no priority counts 0, below the trials "
            "of a search",
        )
    return ok("priorities", found)


def _places(client: Client) -> Check:
    """Check that Kueue reports a job's place in its queue, which `muster queue` shows."""
    from muster.backends.kubernetes.api.kinds import QUEUE_VIEW

    if serves(client.served(), QUEUE_VIEW):
        return ok("places", "Kueue says which job is next")
    return warn(
        "places",
        f"Kueue does not serve {QUEUE_VIEW.api_version}",
        "start Kueue's visibility server: without it a waiting job shows what it waits for, but not its place",
    )


def _gpus(cluster: Cluster, resource: str) -> Check:
    if cluster.nodes is None:
        return warn("GPUs", "this account may not read the nodes", "see the check `reading`")
    with_cards = [node for node in cluster.nodes if node.room.get(resource)]
    if not with_cards:
        return warn(
            "GPUs",
            f"no node has {resource}",
            "install the device plugin, or set gpu_resource to the name of the cards' resource here",
        )
    unnamed = [node.name for node in with_cards if node.gpu_class is None]
    if unnamed:
        return warn(
            "GPUs",
            f"{len(unnamed)} nodes with GPUs have no class: {', '.join(unnamed[:3])}",
            "label each: kubectl label node NODE muster.dev/gpu-class=CLASS",
        )
    counts: dict[str, int] = {}
    for node in with_cards:
        counts[str(node.gpu_class)] = counts.get(str(node.gpu_class), 0) + int(node.room[resource])
    found = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    return ok("GPUs", found)


def _gang(cluster: Cluster, client: Client, site: ClusterSite) -> Check:
    """Submit a gang of two as a dry run to the API server and its webhooks."""
    try:
        rehearse(client, cluster, site=site)
    except Forbidden as error:
        return bad("a gang", error, "see the check `rights`")
    except MusterError as error:
        return bad("a gang", error, "every job would be refused for the same reason")
    return ok("a gang", "a gang of two replicas would be accepted (dry run)")
