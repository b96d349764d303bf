"""Starts a worker process: from the front on one machine, from a pod's host in its container."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from muster_serving.process.setup import Setup

_WORKER = "muster_serving.process.worker"
_CODE = str(Path(__file__).parents[2])  # a folder, or a pod's zip
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def start(folder: Path, setup: Setup, *, connection: int, out: int | None) -> subprocess.Popen[bytes]:
    """Start a worker of a version on a connected socket. Call it in the main thread: the worker dies with the caller's.

    :param out: where it prints; None inherits.
    :raises OSError: it cannot be started.
    """
    options = {
        "trusted": setup.trusted,
        "stream": setup.stream,
        "memory_gib": setup.worker_gib,
        "parent": os.getpid(),
    }
    return subprocess.Popen(
        [setup.python, "-m", _WORKER, str(connection), str(folder), json.dumps(options)],
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=out,
        cwd="/",
        env=_environment(setup),
        pass_fds=(connection,),
        start_new_session=True,  # what it forks ends with it
    )


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a worker and what it forked."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def how_it_ended(code: int, *, last_line: str, gib: float) -> str:
    """Say how a worker ended, by its exit code, and what it said last."""
    if code == -signal.SIGKILL:
        return "was ended by SIGKILL, which another process sent, or the kernel where the memory was used up"
    how = f"was ended by {_signal(-code)}" if code < 0 else f"ended with exit code {code}"
    if "bad_alloc" in last_line or "MemoryError" in last_line:
        how += f", with no more memory: it may take {gib:g} GiB (memory_gib of the deployment's resources)"
    return f"{how}: {last_line}" if last_line else how


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _environment(setup: Setup) -> Mapping[str, str]:
    mine = {name: value for name, value in os.environ.items() if name not in ("PYTHONHOME", "VIRTUAL_ENV")}
    threads = {name: str(setup.threads) for name in THREADS}
    return {**threads, **mine, "PYTHONPATH": _CODE, "PYTHONUNBUFFERED": "1", **_safe()}


def _safe() -> Mapping[str, str]:
    # the folder that it starts in holds no code; Python 3.10 does not know this yet
    return {"PYTHONSAFEPATH": "1"} if sys.version_info >= (3, 11) else {}
