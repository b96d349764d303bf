"""``tensorflow``: ``TF_CONFIG``, which names all tasks, and the rank's own, to ``tf.distribute``.

Its form is that of ``tf.distribute.cluster_resolver.TFConfigClusterResolver``. A role named as one of
TensorFlow's task types (chief, worker, ps, evaluator) is of that type; ranks of other roles are workers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from muster.core.replica import Replica
from muster.worker.launchers import torchrun

TASKS = frozenset({"chief", "worker", "ps", "evaluator"})
WORKER = "worker"


def environment(replica: Replica, local_rank: int, _base: Mapping[str, str]) -> dict[str, str]:
    """Return a rank's ``TF_CONFIG``."""
    cluster: dict[str, list[str]] = {}
    task = {}
    peers = iter(enumerate(replica.peers))
    for role in replica.spec.roles:
        kind = role.name if role.name in TASKS else WORKER
        for _ in range(role.replicas * role.ranks):
            rank, address = next(peers)
            if rank == replica.first_rank + local_rank:
                task = {"type": kind, "index": len(cluster.get(kind, []))}
            cluster.setdefault(kind, []).append(address)
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task}, separators=(",", ":"))}


meet = torchrun.meet  # gRPC caches a failed lookup for a while
