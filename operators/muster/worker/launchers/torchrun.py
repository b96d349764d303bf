"""``torchrun``: the environment that torchrun's agent gives its workers, without importing torch.

The variables are those of ``torch/distributed/elastic/agent/server/local_elastic_agent.py``. Rank 0 itself serves the
store at MASTER_ADDR:MASTER_PORT.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from muster.core.replica import LOOPBACK, Replica
from muster.worker.launchers.launcher import error_file, replica_number


def environment(replica: Replica, local_rank: int, base: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of ``torch.distributed``."""
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
        "TORCHELASTIC_ERROR_FILE": error_file(replica, local_rank),
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": base.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    }


def meet(replica: Replica, _environments: Sequence[dict[str, str]]) -> list[int]:
    """Wait until the name of rank 0's replica resolves."""
    if replica.master_address != LOOPBACK:
        from muster.worker.rendezvous import await_name  # not on one machine: it loads socket

        await_name(replica.master_address)
    return []
