"""``ray``: a Ray cluster. ``ray.init()`` in the first replica finds its head; the others are its nodes.

The commands are those of ``ray start`` (ray/scripts/scripts.py). ``ray.init`` reads ``RAY_ADDRESS``. Each node asks for the
token of this start of the gang (``RAY_AUTH_TOKEN``), since Ray listens on all interfaces.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from muster.core.replica import LOOPBACK, Replica
from muster.worker.launchers import engine

# Ray takes 127.0.0.1 for a name that other machines cannot reach, and puts one of the machine's addresses in its place. This
# is loopback, too.
_LOCAL = "127.0.0.2"
_LEAST = (2, 52)
"""The first release that asks for a token; an older one runs whatever is sent to its ports."""
_STORE_SHARE, _STORE_LEAST_MIB = 0.3, 100  # Ray refuses an object store of less than 75 MiB
# Ray tells on stdout how one goes on by hand, and on stderr what is wrong. Where it can, it opens a port for drivers on other
# machines, always the same one: there are none, and another job of this machine would find it taken.
_START = """
import os, sys
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
from ray.scripts import scripts
scripts.get_ray_client_dependency_error = lambda: "the driver is in the cluster"
sys.argv[:1] = ["ray", "start"]
scripts.main()
"""


def environment(replica: Replica, _local_rank: int, _base: Mapping[str, str]) -> dict[str, str]:
    """Return where the head is; :func:`meet` adds the token."""
    return {
        "RAY_ADDRESS": _head(replica),
        "RAY_AUTH_MODE": "token",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_COLOR_PREFIX": "0",
        "RAY_SCHEDULER_EVENTS": "0",  # of its autoscaler: there is none, and nodes may come later than the driver
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",  # a node is told to end when nothing of the job is left to do
    }


def meet(replica: Replica, environments: Sequence[dict[str, str]]) -> list[int]:
    """Start the head beside the first replica."""
    engine.package("ray", image=replica.spec.image, least=_LEAST)
    if replica.works:
        engine.await_head(replica, host=_host(replica))
        environments[0]["RAY_AUTH_TOKEN"] = engine.read_secret(replica)
        return []
    environments[0]["RAY_AUTH_TOKEN"] = engine.make_secret(replica)
    # The head runs no tasks: the first replica's memory, CPUs and GPUs are the driver's.
    head = ("--head", "--port", str(replica.master_port), "--include-dashboard", "false", "--num-gpus", "0")
    words = _node(replica, *head, cpus=0)
    return [engine.lead(replica, words, environments[0], host=_own(replica))]


def worker(replica: Replica, _environment: Mapping[str, str]) -> list[str]:
    """Return the words of a node."""
    cards = ("--num-gpus", str(len(replica.gpus)))
    node = _node(replica, "--address", _head(replica), *cards, cpus=engine.cores(replica))
    return engine.kept(replica, node, host=_host(replica))


def _node(replica: Replica, *words: str, cpus: int) -> list[str]:
    store_mib = max(_STORE_LEAST_MIB, engine.memory_mib(replica, _STORE_SHARE))
    folder = engine.reachable(os.path.join(replica.scratch, "ray"))
    return [
        sys.executable, "-c", _START, *words, "--block", "--disable-usage-stats", "--log-color", "false",
        "--node-ip-address", _own(replica), "--temp-dir", folder,
        "--num-cpus", str(cpus), "--memory", str(engine.memory_mib(replica, 1 - _STORE_SHARE) << 20),
        "--object-store-memory", str(store_mib << 20),
        "--min-worker-port", "0", "--max-worker-port", "0",
    ]  # fmt: skip


def _host(replica: Replica) -> str:
    return _LOCAL if replica.master_address == LOOPBACK else replica.master_address


def _own(replica: Replica) -> str:
    return _LOCAL if replica.master_address == LOOPBACK else engine.own_address(replica)


def _head(replica: Replica) -> str:
    return f"{_host(replica)}:{replica.master_port}"
