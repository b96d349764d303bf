"""Finds out what a cluster is and has: a dozen requests, whatever its size."""

from __future__ import annotations

from collections.abc import Collection

from muster.backends.kubernetes.api.client import Client
from muster.backends.kubernetes.api.kinds import (
    CLAIM,
    CLUSTER_QUEUE,
    COHORT,
    HTTP_ROUTE,
    INFERENCE_SERVICE,
    JOB_SET,
    LOCAL_QUEUE,
    NAMESPACE,
    NODE,
    POD_GROUP,
    PRIORITY_CLASS,
    RESOURCE_FLAVOR,
    SELDON_DEPLOYMENT,
    TOPOLOGY,
    WORKLOAD,
    WORKLOAD_PRIORITY_CLASS,
    Document,
    Kind,
)
from muster.backends.kubernetes.cluster.facts import (
    Cluster,
    Flavor,
    Node,
    Queue,
    VolumeClaim,
    limits_of,
    named,
)
from muster.core.errors import Forbidden

_SERVING = (INFERENCE_SERVICE, SELDON_DEPLOYMENT)


def discover(client: Client, *, namespace: str, claim: str) -> Cluster:
    """Look at the cluster as `namespace` sees it.

    What these credentials may not read is left unknown, so that little is asked of them: a role in
    the namespace is enough, and reading nodes, ClusterQueues and flavors makes refusals earlier.

    :param claim: the PersistentVolumeClaim of the store.
    :raises Forbidden: not even the namespace's own queues and claim may be read.
    """
    served = client.served()
    kueue, volume = serves(served, WORKLOAD), _claim(client, namespace, claim)
    queues = _queues(client, namespace) if kueue else {}
    return Cluster(
        namespace=namespace,
        job_set=serves(served, JOB_SET),
        kueue=kueue,
        topology=serves(served, TOPOLOGY),
        pod_group=serves(served, POD_GROUP),
        serving=frozenset(kind for kind in _SERVING if serves(served, kind)),
        gateway_api=serves(served, HTTP_ROUTE),
        terminating=_terminating(client, namespace),
        claim=volume,
        queues=queues,
        flavors={each.name: each for each in map(Flavor.of, readable(client, RESOURCE_FLAVOR) or ())}
        if kueue
        else {},
        priorities=_priorities(client, WORKLOAD_PRIORITY_CLASS if queues else PRIORITY_CLASS),
        nodes=_nodes(client),
    )


def serves(served: Collection[tuple[str, str]], kind: Kind) -> bool:
    """Whether a kind is among what an API server serves (:meth:`~.client.Client.served`)."""
    return (kind.api_version, kind.plural) in served


def readable(client: Client, kind: Kind) -> tuple[Document, ...] | None:
    """Return all objects of a kind of the whole cluster, None where they may not be read."""
    try:
        return client.find(kind)
    except Forbidden:
        return None


def _terminating(client: Client, namespace: str) -> bool:
    try:
        found = client.get(NAMESPACE, namespace)
    except Forbidden:
        return False
    return found is not None and found.get("status", {}).get("phase") == "Terminating"


def _claim(client: Client, namespace: str, name: str) -> VolumeClaim | None:
    found = client.get(CLAIM, name, namespace=namespace)
    return None if found is None else VolumeClaim.of(found)


def _queues(client: Client, namespace: str) -> dict[str, Queue]:
    limits = limits_of(readable(client, CLUSTER_QUEUE) or (), readable(client, COHORT))
    found = client.find(LOCAL_QUEUE, namespace=namespace)
    return {queue.name: queue for queue in (Queue.of(local, limits) for local in found)}


def _priorities(client: Client, kind: Kind) -> frozenset[str] | None:
    found = readable(client, kind)
    return None if found is None else frozenset(named(found))


def _nodes(client: Client) -> tuple[Node, ...] | None:
    found = readable(client, NODE)
    return None if found is None else tuple(map(Node.of, found))
