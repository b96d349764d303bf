"""What a launcher does for the ranks of a replica, and what every rank finds whichever launcher starts it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Protocol, cast

from muster.core.job import Launcher
from muster.core.replica import LOOPBACK, Replica


class RankLauncher(Protocol):
    """A module of this room."""

    def environment(
        self, replica: Replica, local_rank: int, *, base: Mapping[str, str], error_file: str
    ) -> dict[str, str]:
        """Return what this launcher gives a rank beside what every rank finds.

        :param base: what the backend gave the worker, secrets included.
        :param error_file: where a script that uses torch's ``@record`` writes what it raised.
        """

    def meet(self, replica: Replica, environments: Sequence[dict[str, str]]) -> list[int]:
        """Make ready what the ranks need to find each other, before any of them starts; it may wait for other replicas.

        :param environments: of this replica's ranks; what is known only now may be added.
        :return: the pids of processes that serve the ranks. They are ended when the ranks have ended.
        :raises OSError: it cannot be had.
        """


def launcher_of(launcher: Launcher) -> RankLauncher:
    """Return the module of a launcher; no other is loaded."""
    return cast("RankLauncher", import_module(f"muster.worker.launchers.{launcher.value}"))


def rank_environment(
    replica: Replica, local_rank: int, *, base: Mapping[str, str], error_file: str
) -> dict[str, str]:
    """Return everything rank `local_rank` of this replica finds in its environment."""
    chosen = launcher_of(replica.spec.launcher).environment(
        replica, local_rank, base=base, error_file=error_file
    )
    return {**_defaults(replica), **base, **replica.spec.env, **_common(replica, local_rank, base), **chosen}


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
