"""The protocol of launchers, and the environment that every rank gets from any launcher."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from itertools import takewhile
from typing import Protocol, cast

from muster.core.job import MLFLOW_TAG, MLFLOW_TAGS, Launcher
from muster.core.replica import LOOPBACK, Replica


class RankLauncher(Protocol):
    """A module of this package."""

    def environment(self, replica: Replica, local_rank: int, base: Mapping[str, str], /) -> dict[str, str]:
        """Return the variables that this launcher adds for a rank.

        :param base: the environment that the backend gave the worker, secrets included.
        """

    def meet(self, replica: Replica, environments: Sequence[dict[str, str]], /) -> list[int]:
        """Prepare the ranks' rendezvous before any of them starts; it may wait for other replicas.

        :param environments: those of this replica's ranks; variables that are known only now may be added.
        :return: pids of processes that serve the ranks; they are killed when the ranks have ended
        :raises OSError: the rendezvous cannot be had.
        """


class EngineLauncher(RankLauncher, Protocol):
    """A module of this package whose first replica drives; see :attr:`muster.core.job.Launcher.drives`."""

    def worker(self, replica: Replica, environment: Mapping[str, str], /) -> list[str]:
        """Return the words that a rank of any other replica runs, in place of what the author wrote.

        They end well once the first replica has sealed.
        """


def launcher_of(launcher: Launcher) -> RankLauncher:
    """Return the module of a launcher; only this one is loaded."""
    return cast("RankLauncher", import_module(f"muster.worker.launchers.{launcher.value}"))


def rank_environment(replica: Replica, local_rank: int, *, base: Mapping[str, str]) -> dict[str, str]:
    """Return the whole environment of rank `local_rank` of this replica.

    The author's variables are among `base` on one machine, and in a replica's document alone on a cluster.
    """
    base = {**base, **replica.spec.env}
    chosen = launcher_of(replica.spec.launcher).environment(replica, local_rank, base)
    found = {**_defaults(replica), **base, **_common(replica, local_rank, base), **chosen}
    return {
        **found,
        MLFLOW_TAGS: json.dumps({**_tags(found.get(MLFLOW_TAGS, "")), MLFLOW_TAG: replica.job_id}),
    }


def error_file(replica: Replica, local_rank: int) -> str:
    """Return the file for errors of scripts that use torch's ``@record``."""
    return os.path.join(replica.scratch, f"rank-{replica.first_rank + local_rank}-error.json")


def _tags(text: str) -> dict[str, object]:
    """The tags that the author gives to MLflow's runs, or a search; none where the text is no JSON object."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def replica_number(replica: Replica) -> int:
    """Return this replica's number among all of the gang, roles in the spec's order."""
    before = takewhile(lambda role: role.name != replica.role, replica.spec.roles)
    return sum(role.replicas for role in before) + replica.index


def _defaults(replica: Replica) -> dict[str, str]:
    """Variables that the image or the author may override."""
    role = replica.job_role
    threads = max(1, int(role.resources.cpus // role.ranks))
    loopback = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
    return {
        "OMP_NUM_THREADS": str(threads),
        "PYTHONUNBUFFERED": "1",  # a line is logged as soon as it is written
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
