"""Queues of a test's own in the cluster, with as much room as it says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from tests.cluster import inside, kubectl, store
from tests.cluster.backend import SITE, connected
from tests.cluster.clearing import MADE
from tests.cluster.layout import Layout

from muster.backends.base import Backend
from muster.backends.kubernetes.api.kinds import Document


@contextmanager
def with_room(name: str, *, memory_gib: int) -> Iterator[Layout]:
    """Have the cluster's store service, and a queue with room for so much memory, while the tests of a module run."""
    of, queue = inside.layout(), _queue(name, memory_gib=memory_gib)
    store.deploy(of)
    kubectl.apply(of, queue)
    try:
        yield of
    finally:
        kubectl.delete(of, queue)


@contextmanager
def backend_in(name: str, of: Layout, folder: Path, *, unique: str) -> Iterator[Backend]:
    """Yield a backend whose jobs wait in that queue, once it is empty; then cancel those whose ids end in `unique`."""
    kubectl.until(f"nothing is let in by the queue {name}", lambda: _let_in(of, name) == 0)
    with closing(connected(of, folder, site=replace(SITE, queue=name))) as backend:
        yield backend
        for job_id in backend.store.ledger.jobs():
            if job_id.endswith(unique):
                backend.cancel(job_id)


def _let_in(of: Layout, name: str) -> int:
    """How many jobs hold room there: a job that has ended holds it until Kueue has seen so."""
    return int(kubectl.get(of, f"clusterqueues/{name}").get("status", {}).get("reservingWorkloads", 0))


def _queue(name: str, *, memory_gib: int) -> list[Document]:
    """A queue of its own with quota for so much memory, many processors and no GPU."""
    quotas = {"cpu": "100", "memory": f"{memory_gib}Gi", "nvidia.com/gpu": "0"}
    flavor = {
        "name": "cpu",
        "resources": [{"name": key, "nominalQuota": text} for key, text in quotas.items()],
    }
    group = {"coveredResources": list(quotas), "flavors": [flavor]}
    head = {"apiVersion": "kueue.x-k8s.io/v1beta2"}
    return [
        {
            **head,
            "kind": "ClusterQueue",
            "metadata": {"name": name, "labels": {MADE: "yes"}},
            "spec": {
                "namespaceSelector": {},
                "preemption": {"withinClusterQueue": "LowerPriority"},
                "resourceGroups": [group],
            },
        },
        {
            **head,
            "kind": "LocalQueue",
            "metadata": {"name": name, "namespace": inside.NAMESPACE, "labels": {MADE: "yes"}},
            "spec": {"clusterQueue": name},
        },
    ]
