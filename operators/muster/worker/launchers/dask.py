"""``dask``: a Dask cluster. ``Client()`` in the first replica finds its scheduler; the others are its workers.

The commands are those of ``dask scheduler`` and ``dask worker`` (distributed/cli). Dask reads ``DASK_SCHEDULER_ADDRESS``
as its setting ``scheduler-address``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from muster.core.replica import LOOPBACK, Replica
from muster.worker.launchers import engine

_LEVEL = "DASK_LOGGING__DISTRIBUTED"
"""Dask's setting ``logging.distributed``; by default each process tells a dozen lines of its start and end.

It is left to the author who sets any of the settings of logs: beside a file of them Dask takes no other.
"""


# The worker ends what serves its ranks by SIGRTMAX. The scheduler then tells its workers that it closes: they would miss it otherwise,
# and log a heartbeat that failed. It ends of that signal all the same, so that it is not taken for lost.
_SCHEDULES = """
import atexit, os, signal
from distributed.cli.dask_scheduler import main

def close(*_):
    signal.signal(signal.SIGRTMAX, signal.SIG_DFL)
    atexit.register(os.kill, os.getpid(), signal.SIGRTMAX)
    os.kill(os.getpid(), signal.SIGTERM)

signal.signal(signal.SIGRTMAX, close)
main()
"""


def environment(replica: Replica, _local_rank: int, base: Mapping[str, str]) -> dict[str, str]:
    """Return where the scheduler is, and have Dask tell only what is wrong."""
    return {
        "DASK_SCHEDULER_ADDRESS": _scheduler(replica),
        "DASK_TEMPORARY_DIRECTORY": replica.scratch,
        "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "60s",  # workers may come later than the first replica
        **({} if any(name.startswith("DASK_LOGGING") for name in base) else {_LEVEL: "warning"}),
    }


def meet(replica: Replica, environments: Sequence[dict[str, str]]) -> list[int]:
    """Start the scheduler beside the first replica."""
    engine.package("distributed", image=replica.spec.image)
    if replica.works:
        engine.await_head(replica, host=replica.master_address)
        return []
    at = LOOPBACK if replica.master_address == LOOPBACK else "0.0.0.0"  # noqa: S104 - a pod's own network
    words = (
        sys.executable, "-c", _SCHEDULES, "--host", at, "--port", str(replica.master_port), "--no-dashboard",
    )  # fmt: skip
    return [engine.lead(replica, words, environments[0], host=replica.master_address)]


def worker(replica: Replica, _environment: Mapping[str, str]) -> list[str]:
    """Return the words of a worker."""
    return engine.kept(
        replica,
        (
            sys.executable, "-m", "distributed.cli.dask_worker", _scheduler(replica),
            "--host", engine.own_address(replica), "--no-dashboard", "--no-nanny",
            "--nthreads", str(engine.cores(replica)), "--memory-limit", f"{engine.memory_mib(replica, 0.9)}MiB",
            "--local-directory", replica.scratch,
        ),
        host=replica.master_address,
    )  # fmt: skip


def _scheduler(replica: Replica) -> str:
    return f"tcp://{replica.master_address}:{replica.master_port}"
