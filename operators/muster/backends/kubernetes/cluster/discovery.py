"""Finds out what a cluster is and has: a dozen requests, whatever its size."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import replace

from muster.backends.kubernetes.api.client import Client
from muster.backends.kubernetes.api.kinds import (
    CLAIM,
    CLUSTER_QUEUE,
    COHORT,
    EVENT,
    HTTP_ROUTE,
    INFERENCE_SERVICE,
    JOB,
    JOB_SET,
    LOCAL_QUEUE,
    NAMESPACE,
    NODE,
    POD,
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
    Gangs,
    Node,
    Queue,
    VolumeClaim,
    limits_of,
    named,
)
from muster.backends.kubernetes.site import ClusterSite
from muster.core.errors import Forbidden, Unreachable

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


QUICK_SECONDS = 5.0  # a read gives up after this long where the API server does not answer
_YOUNG_SECONDS = 60.0


class Survey:
    """The cluster as it was a minute ago at most. Safe to share between threads."""

    def __init__(
        self, client: Client, site: ClusterSite, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._site = site
        self._clock = clock
        self._lock = threading.Lock()
        self._found: Cluster | None = None
        self._looked = 0.0

    def cluster(self, *, younger_than: float = _YOUNG_SECONDS) -> Cluster:
        """Return what there is. :param younger_than: seconds; what is older is looked up again."""
        return self._look(self._client, younger_than)

    def last(self) -> Cluster | None:
        """Return what was found last, looked up where that is old and it can be; None where nothing was ever.

        :raises Forbidden: nothing was ever, and these credentials may not look.
        """
        try:
            return self._look(self._client.patient(QUICK_SECONDS), _YOUNG_SECONDS)
        except Unreachable:
            pass
        except Forbidden:  # what was allowed before is forbidden by an API server that starts
            if self._found is None:
                raise
        self._looked = self._clock()  # not at each look, while it is away
        return self._found

    def kinds(self) -> tuple[Kind, ...]:
        """Return the kinds of objects that a job may have here, as of the last look at the cluster.

        :raises Unreachable: there was none yet, and the cluster is away.
        """
        cluster = self._found or self._look(self._client.patient(QUICK_SECONDS), _YOUNG_SECONDS)
        grouped = cluster.gangs is Gangs.POD_GROUP
        served = {JOB_SET: cluster.job_set, WORKLOAD: cluster.kueue, POD_GROUP: grouped}
        return JOB, POD, EVENT, *(kind for kind, there in served.items() if there)

    def _look(self, client: Client, younger_than: float) -> Cluster:
        with self._lock:
            if self._found is None or self._clock() - self._looked > younger_than:
                found = discover(client, namespace=self._site.namespace, claim=self._site.claim)
                self._found = replace(found, nodes=None) if self._site.elastic else found
                self._looked = self._clock()
            return self._found
