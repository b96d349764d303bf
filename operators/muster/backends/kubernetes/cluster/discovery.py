"""Finds out what a cluster is and has, with a dozen requests, whatever its size; and which rights an account lacks there.

The rights are those of the role that the chart makes (``helm/muster/templates/accounts.yaml``).
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from muster.backends.kubernetes.api import kinds
from muster.backends.kubernetes.api.client import Client
from muster.backends.kubernetes.api.kinds import Document, Kind
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

QUICK_SECONDS = 5.0  # a read gives up after this long where the API server does not answer
SERVING = (kinds.INFERENCE_SERVICE, kinds.SELDON_DEPLOYMENT)
_YOUNG_SECONDS = 60.0
_AT_ONCE = 8
_READ = ("get", "list", "watch")
_OWN = (*_READ, "create", "delete")


def discover(client: Client, *, namespace: str, claim: str) -> Cluster:
    """Look at the cluster as `namespace` sees it.

    What these credentials may not read is left unknown, so that little is asked of them: a role in
    the namespace is enough, and reading nodes, ClusterQueues and flavors makes refusals earlier.

    :param claim: the PersistentVolumeClaim of the store.
    :raises Forbidden: not even the namespace's own queues and claim may be read.
    """
    served = client.served()
    kueue, volume = serves(served, kinds.WORKLOAD), _claim(client, namespace, claim)
    queues = _queues(client, namespace) if kueue else {}
    return Cluster(
        namespace=namespace,
        job_set=serves(served, kinds.JOB_SET),
        kueue=kueue,
        topology=serves(served, kinds.TOPOLOGY),
        pod_group=serves(served, kinds.POD_GROUP),
        serving=frozenset(kind for kind in SERVING if serves(served, kind)),
        gateway_api=serves(served, kinds.HTTP_ROUTE),
        terminating=_terminating(client, namespace),
        claim=volume,
        queues=queues,
        flavors={each.name: each for each in map(Flavor.of, readable(client, kinds.RESOURCE_FLAVOR) or ())}
        if kueue
        else {},
        priorities=_priorities(client, kinds.WORKLOAD_PRIORITY_CLASS if queues else kinds.PRIORITY_CLASS),
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
        found = client.get(kinds.NAMESPACE, namespace)
    except Forbidden:
        return False
    return found is not None and found.get("status", {}).get("phase") == "Terminating"


def _claim(client: Client, namespace: str, name: str) -> VolumeClaim | None:
    found = client.get(kinds.CLAIM, name, namespace=namespace)
    return None if found is None else VolumeClaim.of(found)


def _queues(client: Client, namespace: str) -> dict[str, Queue]:
    limits = limits_of(readable(client, kinds.CLUSTER_QUEUE) or (), readable(client, kinds.COHORT))
    found = client.find(kinds.LOCAL_QUEUE, namespace=namespace)
    return {queue.name: queue for queue in (Queue.of(local, limits) for local in found)}


def _priorities(client: Client, kind: Kind) -> frozenset[str] | None:
    found = readable(client, kind)
    return None if found is None else frozenset(named(found))


def _nodes(client: Client) -> tuple[Node, ...] | None:
    found = readable(client, kinds.NODE)
    return None if found is None else tuple(map(Node.of, found))


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
        served = {kinds.JOB_SET: cluster.job_set, kinds.WORKLOAD: cluster.kueue, kinds.POD_GROUP: grouped}
        return kinds.JOB, kinds.POD, kinds.EVENT, *(kind for kind, there in served.items() if there)

    def _look(self, client: Client, younger_than: float) -> Cluster:
        with self._lock:
            if self._found is None or self._clock() - self._looked > younger_than:
                found = discover(client, namespace=self._site.namespace, claim=self._site.claim)
                self._found = replace(found, nodes=None) if self._site.elastic else found
                self._looked = self._clock()
            return self._found


@dataclass(frozen=True)
class Right:
    """One verb on one kind of object. :param whole: in the whole cluster, not in one namespace."""

    verb: str
    kind: Kind
    subresource: str = ""
    whole: bool = False

    @property
    def resource(self) -> str:
        """As a role names it: ``localqueues/pendingworkloads``."""
        return f"{self.kind.plural}/{self.subresource}" if self.subresource else self.kind.plural


def _rights(kinds: Iterable[Kind], verbs: Iterable[str], *, subresource: str = "") -> tuple[Right, ...]:
    return tuple(Right(verb, kind, subresource) for kind in kinds for verb in verbs)


_NEEDED: tuple[Right, ...] = (
    *_rights((kinds.JOB_SET, kinds.JOB), _OWN),
    *_rights((kinds.POD, kinds.EVENT), _READ),
    *_rights((kinds.SECRET,), ("create",)),
    *_rights((kinds.CLAIM,), ("get",)),
    *_rights((kinds.WORKLOAD, kinds.LOCAL_QUEUE), _READ),
    *_rights((kinds.QUEUE_VIEW,), ("get",), subresource="pendingworkloads"),
)
_GROUPS = _rights((kinds.POD_GROUP,), (*_READ, "create"))  # they go with their JobSet


def needed(*, kueue: bool) -> tuple[Right, ...]:
    """Return what it takes to submit, follow and end any job. :param kueue: it starts gangs whole; else PodGroups do."""
    return _NEEDED if kueue else (*_NEEDED, *_GROUPS)


_ROUTE = ("get", "list", "create", "patch", "delete")


def serving_rights(kind: Kind, *, gateway: bool) -> tuple[Right, ...]:
    """Return what it takes to deploy on a cluster, beside :func:`needed`.

    :param kind: what the serving platform makes a model server of.
    :param gateway: whether there is one.
    """
    return (
        *_rights((kind,), ("get", "list", "create", "patch", "delete")),
        *_rights((kinds.SERVICE,), ("get", "list", "create") if gateway else _ROUTE),
        *_rights((kinds.HTTP_ROUTE,), _ROUTE if gateway else ("get",)),
        *_rights((kinds.CONFIG_MAP,), ("get", "list", "create", "patch")),
        *_rights((kinds.DEPLOYMENT, kinds.ENDPOINT_SLICE), ("list",)),
        *_rights((kinds.POD,), ("get", "create"), subresource="proxy"),
    )


_QUEUED = (
    kinds.NODE,
    kinds.CLUSTER_QUEUE,
    kinds.RESOURCE_FLAVOR,
    kinds.WORKLOAD_PRIORITY_CLASS,
    kinds.COHORT,
)


def helpful(*, kueue: bool) -> tuple[Right, ...]:
    """Return those without which it is not said before a job waits that it can never run, and what its priority is.

    ``muster gpus`` needs the nodes. :param kueue: as in :func:`needed`.
    """
    return tuple(
        Right("list", kind, whole=True) for kind in (*_QUEUED, *(() if kueue else (kinds.PRIORITY_CLASS,)))
    )


def lacking(
    client: Client, rights: Iterable[Right], *, namespace: str, served: Collection[tuple[str, str]]
) -> tuple[Right, ...]:
    """Return those that these credentials do not have.

    :param served: what the cluster serves (:meth:`~.client.Client.served`): a kind
        that it does not serve needs no right.
    """
    asked = [right for right in rights if not right.kind.group or serves(served, right.kind)]

    def allowed(right: Right) -> bool:
        where = None if right.whole else namespace
        return client.allowed(right.verb, right.kind, namespace=where, subresource=right.subresource)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return tuple(right for right, yes in zip(asked, pool.map(allowed, asked), strict=True) if not yes)


def rules(rights: Iterable[Right]) -> str:
    """Write rights as a role's rules, on one line, a rule for each resource."""
    verbs: dict[tuple[str, str], list[str]] = defaultdict(list)
    for right in rights:
        verbs[right.kind.group, right.resource].append(right.verb)
    return "; ".join(
        f'apiGroups: ["{group}"], resources: ["{resource}"], verbs: [{", ".join(found)}]'
        for (group, resource), found in verbs.items()
    )
