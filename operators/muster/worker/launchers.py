"""How ranks learn of each other: the environment that each launcher gives a rank.

``plain`` names the rank and no more. ``torchrun`` sets what torchrun's agent sets for its workers
(``torch/distributed/elastic/agent/server/local_elastic_agent.py``), without the agent and without
importing torch; rank 0 itself holds the store at MASTER_ADDR:MASTER_PORT. ``horovod`` sets what
horovodrun's gloo launcher sets (``horovod/runner/gloo_run.py``), without ssh.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from muster.core.job import Launcher
from muster.core.replica import Replica

LOOPBACK = "127.0.0.1"
HOROVOD_TIMEOUT_SECONDS = 600


def rank_environment(
    replica: Replica, local_rank: int, *, base: Mapping[str, str], error_file: str
) -> dict[str, str]:
    """Return everything rank `local_rank` of this replica finds in its environment.

    :param base: what the backend gave the worker, secrets included.
    :param error_file: where a script that uses torch's ``@record`` writes what it raised.
    """
    chosen: dict[str, str] = {}
    if replica.spec.launcher is Launcher.TORCHRUN:
        chosen = _torchrun(replica, local_rank, base=base, error_file=error_file)
    elif replica.spec.launcher is Launcher.HOROVOD:
        chosen = _horovod(replica, local_rank)
    return {**_defaults(replica), **base, **replica.spec.env, **_common(replica, local_rank, base), **chosen}


def cross(replica: Replica, local_rank: int) -> tuple[int, int]:
    """Return this rank's place among the ranks of the same local rank on all replicas, and their number."""
    before = total = 0
    for role in replica.spec.roles:
        if role.ranks > local_rank:
            if role.name == replica.role:
                before = total + replica.index
            total += role.replicas
    return before, total


def replica_number(replica: Replica) -> int:
    """Return this replica's place among all replicas of the gang, roles in the spec's order."""
    before = 0
    for role in replica.spec.roles:
        if role.name == replica.role:
            break
        before += role.replicas
    return before + replica.index


def _defaults(replica: Replica) -> dict[str, str]:
    """What the image or the author may set otherwise."""
    role = replica.job_role
    threads = max(1, int(role.resources.cpus // role.ranks))
    loopback = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
    return {
        "OMP_NUM_THREADS": str(threads),
        "PYTHONUNBUFFERED": "1",  # a line is logged when it is written
        "PYTHONFAULTHANDLER": "1",  # a crash in C shows the Python stack
        **(dict.fromkeys(loopback, "lo") if replica.master_address == LOOPBACK else {}),
    }


def _common(replica: Replica, local_rank: int, base: Mapping[str, str]) -> dict[str, str]:
    programs = os.path.dirname(sys.executable)
    return {
        "MUSTER_JOB_ID": replica.job_id,
        "MUSTER_RANK": str(replica.first_rank + local_rank),
        "MUSTER_WORLD_SIZE": str(replica.spec.world_size),
        "MUSTER_ATTEMPT": str(replica.attempt),
        "MUSTER_CHECKPOINTS": replica.checkpoints,
        "TMPDIR": replica.scratch,
        "PATH": programs + os.pathsep + base.get("PATH", os.defpath),
        "CUDA_VISIBLE_DEVICES": ",".join(replica.gpus),
    }


def _torchrun(
    replica: Replica, local_rank: int, *, base: Mapping[str, str], error_file: str
) -> dict[str, str]:
    role = replica.job_role
    return {
        "LOCAL_RANK": str(local_rank),
        "RANK": str(replica.first_rank + local_rank),
        "GROUP_RANK": str(replica_number(replica)),
        "ROLE_RANK": str(replica.index * role.ranks + local_rank),
        "ROLE_NAME": role.name,
        "LOCAL_WORLD_SIZE": str(role.ranks),
        "WORLD_SIZE": str(replica.spec.world_size),
        "GROUP_WORLD_SIZE": str(sum(each.replicas for each in replica.spec.roles)),
        "ROLE_WORLD_SIZE": str(role.replicas * role.ranks),
        "MASTER_ADDR": replica.master_address,
        "MASTER_PORT": str(replica.master_port),
        "TORCHELASTIC_RESTART_COUNT": str(replica.attempt - 1),
        "TORCHELASTIC_MAX_RESTARTS": str(replica.spec.max_restarts),
        "TORCHELASTIC_RUN_ID": replica.job_id,
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_ERROR_FILE": error_file,
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": base.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    }


def _horovod(replica: Replica, local_rank: int) -> dict[str, str]:
    """All but where rank 0's meeting place is, which :mod:`muster.worker.rendezvous` finds out."""
    position, across = cross(replica, local_rank)
    interface = {"HOROVOD_GLOO_IFACE": "lo"} if replica.master_address == LOOPBACK else {}
    return {
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(replica.master_port),
        "HOROVOD_GLOO_TIMEOUT_SECONDS": str(HOROVOD_TIMEOUT_SECONDS),
        "HOROVOD_HOSTNAME": host_name(replica_number(replica)),
        "HOROVOD_RANK": str(replica.first_rank + local_rank),
        "HOROVOD_SIZE": str(replica.spec.world_size),
        "HOROVOD_LOCAL_RANK": str(local_rank),
        "HOROVOD_LOCAL_SIZE": str(replica.job_role.ranks),
        "HOROVOD_CROSS_RANK": str(position),
        "HOROVOD_CROSS_SIZE": str(across),
        **interface,
    }


def host_name(number: int) -> str:
    """What Horovod calls the replica of that number; two replicas on one machine are two hosts."""
    return f"replica-{number}"
