"""Looks at a cluster's GPUs and queues with a handful of requests, sent at the same time where they can be."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from muster.backends.capacity import (
    Cards,
    Gpus,
    HeldResources,
    Line,
    Part,
    QueuePlace,
    Queues,
    Share,
    WaitingJob,
)
from muster.backends.forecast import Competition
from muster.backends.kubernetes.api import kinds
from muster.backends.kubernetes.api.client import Client
from muster.backends.kubernetes.api.kinds import Document, Kind
from muster.backends.kubernetes.cluster.discovery import readable, serves
from muster.backends.kubernetes.cluster.facts import Flavor, Queue
from muster.backends.kubernetes.labels import JOB as JOB_LABEL, selector
from muster.backends.kubernetes.site import ClusterSite
from muster.backends.kubernetes.state import queueing
from muster.backends.kubernetes.state.outlook import ClusterDocuments, with_queues, without_queues
from muster.backends.kubernetes.state.seen import JobObjects
from muster.core.errors import BackendError, Forbidden, MusterError
from muster.core.job import NORMAL, JobSpec
from muster.core.names import check_job_id

log = logging.getLogger(__name__)

_NOT_ENDED = "status.phase!=Succeeded,status.phase!=Failed"
_AT_ONCE = 8


class ClusterCapacity:
    """What a namespace's jobs may run on, and what waits in it; see :class:`~muster.backends.capacity.Capacity`.

    :param site: says what a card is called, and the LocalQueue of jobs that name none.
    """

    def __init__(self, client: Client, site: ClusterSite) -> None:
        self._client = client
        self._namespace = site.namespace
        self._resource = site.gpu_resource
        self._queue = site.queue

    def gpus(self) -> Gpus:
        """Return who has the GPUs now.

        Pods of other namespaces count where these credentials may list them; else what the queues
        have let in counts in their stead, and :attr:`~muster.backends.capacity.Gpus.unseen` says so.
        """
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            served = pool.submit(self._client.served)
            nodes, pods = pool.submit(self._client.find, kinds.NODE), pool.submit(self._pods)
            kueue = serves(served.result(), kinds.CLUSTER_QUEUE)
            queues = pool.submit(readable, self._client, kinds.CLUSTER_QUEUE) if kueue else None
            flavors = pool.submit(readable, self._client, kinds.RESOURCE_FLAVOR) if kueue else None
            known = {flavor.name: flavor for flavor in map(Flavor.of, _found(flavors))}
            owned = queueing.shares(_found(queues), known, resource=self._resource)
            everywhere, found = pods.result()
            counted = queueing.gpus(nodes.result(), found, resource=self._resource)
        if everywhere:
            return replace(counted, shares=owned)
        return replace(
            counted,
            by_class=_with_reserved(counted.by_class, owned),
            shares=owned,
            unseen=(
                f"node by node only pods of namespace {self._namespace} count: these credentials may not list "
                "pods in the whole cluster"
            ),
        )

    def queues(self) -> Queues:
        """Return what waits now, and why. Places are Kueue's own where it tells them, else reckoned."""
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            served = self._client.served()
            roots = [kind for kind in (kinds.JOB, kinds.JOB_SET) if serves(served, kind)]
            heads = [pool.submit(self._heads, kind) for kind in roots]
            if not serves(served, kinds.WORKLOAD):
                return Queues(lines=(), waiting=queueing.unplaced(self._our_pods(), owners=_all(heads)))
            local = pool.submit(self._client.find, kinds.LOCAL_QUEUE, namespace=self._namespace)
            workloads = self._client.find(kinds.WORKLOAD, namespace=self._namespace)
            places = queueing.reckoned_places(workloads)
            if serves(served, kinds.QUEUE_VIEW):
                lengths = Counter(
                    queue for each in queueing.held(workloads) if (queue := queueing.queue_of(each))
                )
                for told in pool.map(self._places, lengths, lengths.values()):
                    places |= told
            flavors = {
                each.name: each
                for each in map(Flavor.of, readable(self._client, kinds.RESOURCE_FLAVOR) or ())
            }
            found = queueing.waiting(workloads, owners=_all(heads), places=places, flavors=flavors)
            return Queues(lines=_lines(local.result(), workloads, found), waiting=found)

    def outlook(self, jobs: Sequence[JobSpec] = (), *, found: ClusterDocuments | None = None) -> Competition:
        """Return the quotas and cards here, what holds them and what waits for them.

        :param found: what was read a moment ago; it is read now unless given.
        """
        found = self.documents() if found is None else found
        if not found.kueue:
            return without_queues(found, jobs, resource=self._resource)
        ranks = {each["metadata"]["name"]: int(each.get("value") or 0) for each in found.priority_classes}
        placed = [(job, self._queue_of(job, found), ranks.get(job.priority or NORMAL, 0)) for job in jobs]
        return with_queues(found, placed, resource=self._resource)

    def documents(self) -> ClusterDocuments:
        """Read what an outlook is made of."""
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            served = self._client.served()
            nodes = pool.submit(readable, self._client, kinds.NODE)
            roots = [kind for kind in (kinds.JOB, kinds.JOB_SET) if serves(served, kind)]
            heads = [pool.submit(self._heads, kind) for kind in roots]
            if not serves(served, kinds.WORKLOAD):
                return ClusterDocuments(
                    kueue=False, nodes=nodes.result(), roots=_all(heads), pods=self._our_pods()
                )
            asked = {
                kind: pool.submit(readable, self._client, kind)
                for kind in (
                    kinds.CLUSTER_QUEUE,
                    kinds.RESOURCE_FLAVOR,
                    kinds.COHORT,
                    kinds.WORKLOAD_PRIORITY_CLASS,
                )
            }
            local = pool.submit(self._client.find, kinds.LOCAL_QUEUE, namespace=self._namespace)
            return ClusterDocuments(
                cluster_queues=_found(asked[kinds.CLUSTER_QUEUE]),
                local_queues=local.result(),
                flavors=_found(asked[kinds.RESOURCE_FLAVOR]),
                cohorts=asked[kinds.COHORT].result(),
                workloads=self._client.find(kinds.WORKLOAD, namespace=self._namespace),
                nodes=nodes.result(),
                roots=_all(heads),
                priority_classes=_found(asked[kinds.WORKLOAD_PRIORITY_CLASS]),
            )

    def parts(self, job_id: str) -> tuple[Part, ...]:
        """Return a job's pods that have a node and have not ended, those of the start that counts."""
        wanted = selector({JOB_LABEL: check_job_id(job_id)})
        pods = self._client.find(kinds.POD, namespace=self._namespace, labels=wanted, fields=_NOT_ENDED)
        placed = [pod for pod in JobObjects(pods=pods).replicas() if pod.node and not pod.deleting]
        return tuple(Part(name=pod.replica, process=f"pod {pod.name}", node=pod.node) for pod in placed)

    def held(self, job_ids: Collection[str]) -> Mapping[str, tuple[HeldResources, ...]]:
        """Return what the pods of these jobs have, by node: one request for all jobs."""
        cards: dict[str, Counter[str]] = {}
        for pod in self._our_pods() if job_ids else ():
            job_id, node = pod["metadata"]["labels"][JOB_LABEL], pod["spec"].get("nodeName")
            if job_id in job_ids and node and "deletionTimestamp" not in pod["metadata"]:
                cards.setdefault(job_id, Counter())[node] += queueing.cards_of(pod, self._resource)
        return {
            job_id: tuple(HeldResources(node=node, gpus=count) for node, count in sorted(nodes.items()))
            for job_id, nodes in cards.items()
        }

    def _queue_of(self, job: JobSpec, found: ClusterDocuments) -> str:
        """Return the LocalQueue that a job would wait in: its own, the site's, or the only one that there is."""
        named = job.queue or self._queue
        names = [str(each["metadata"]["name"]) for each in found.local_queues]
        return named or (names[0] if len(names) == 1 else "")

    def _pods(self) -> tuple[bool, Sequence[Document]]:
        """Return the pods that may hold cards, and whether they are those of the whole cluster."""
        try:
            return True, self._client.find(kinds.POD, fields=_NOT_ENDED)
        except Forbidden:
            return False, self._client.find(kinds.POD, namespace=self._namespace, fields=_NOT_ENDED)

    def _heads(self, kind: Kind) -> Sequence[Document]:
        return self._client.find(kind, namespace=self._namespace, labels=JOB_LABEL, heads=True)

    def _our_pods(self) -> Sequence[Document]:
        return self._client.find(kinds.POD, namespace=self._namespace, labels=JOB_LABEL, fields=_NOT_ENDED)

    def _places(self, queue: str, length: int) -> dict[str, QueuePlace]:
        """Return the places in a queue as Kueue tells them; none where it does not.

        :param length: how many wait in it: Kueue tells of a thousand if it is not asked for more.
        """
        try:
            told = self._client.patient(0.0).get(
                kinds.QUEUE_VIEW,
                queue,
                namespace=self._namespace,
                subresource="pendingworkloads",
                query={"limit": str(length)},
            )
        except BackendError:  # they can be reckoned as well
            return {}
        except MusterError as error:  # the other queues are shown all the same
            log.warning("%s; its places are reckoned", error)
            return {}
        return queueing.asked_places(told or {})


def _found(asked: Future[tuple[Document, ...] | None] | None) -> Sequence[Document]:
    return () if asked is None else asked.result() or ()


def _all(parts: Iterable[Future[Sequence[Document]]]) -> list[Document]:
    return [each for part in parts for each in part.result()]


def _with_reserved(classes: Iterable[Cards], owned: Iterable[Share]) -> tuple[Cards, ...]:
    """Count as used at least what the queues have let in of each class."""
    reserved = Counter[str]()
    for share in owned:
        reserved[share.gpu_class] += share.used
    return tuple(replace(each, used=max(each.used, min(each.total, reserved[each.name]))) for each in classes)


def _lines(
    queues: Iterable[Document], workloads: Iterable[Document], waits: Iterable[WaitingJob]
) -> tuple[Line, ...]:
    before = Counter(each.queue for each in waits)
    inside = Counter(queueing.queue_of(each) for each in workloads if queueing.runs(each))
    found = [Queue.of(each, {}) for each in queues]
    return tuple(
        Line(
            name=queue.name,
            team=queue.cluster_queue,
            waiting=before[queue.name],
            running=inside[queue.name],
            stopped=queue.stopped,
        )
        for queue in sorted(found, key=lambda queue: queue.name)
    )
