"""How the workers of one revision are to run, and how one is started.

The keeper, or a pod's command, says how beside the version's folder. The front starts them on one machine, a pod's host in its
container.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from muster_serving.errors import ModelError

_COUNT_BYTES = 8
_WORKER = "muster_serving.process.worker"
_MARK = "MUSTER_WORKER"
_marks: dict[int, bytes] = {}  # of each worker that runs, by its pid: what it forks has it, too
_CODE = str(Path(__file__).parents[2])  # a folder, or a pod's zip
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Setup:
    """The workers of one revision.

    :param python: the interpreter of the author's environment.
    :param socket: of the host that starts workers in another container; empty where they are started from here.
    :param most: the most rows that are computed together; 0 computes each request alone.
    :param wait_ms: how long a request waits for others.
    :param request_seconds: how long a call of the predictor may take, and how long a request waits for a worker; of a
        predictor that streams, how long each part may take, and all parts together.
    :param load_seconds: how long a worker may take to load the version.
    :param memory_gib: of all workers together.
    :param cpus: of all workers together.
    :param trusted: what may be loaded though it can run code.
    :param stream: whether the predictor yields its answers in parts.
    :param max_requests: after so many answered requests a worker is replaced; 0: never.
    """

    python: str = sys.executable
    socket: str = ""
    workers: int = 1
    most: int = 0
    wait_ms: float = 0.0
    request_seconds: float = 30.0
    load_seconds: float = 120.0
    memory_gib: float = 2.0
    cpus: float = 1.0
    trusted: tuple[str, ...] = ()
    stream: bool = False
    max_requests: int = 0

    def __post_init__(self) -> None:
        if self.stream and self.most:
            raise ModelError("a model that streams computes each request alone: leave batch out")

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> Setup:
        """Read it from parsed JSON. :raises TypeError: an unknown key. :raises ModelError: it cannot be."""
        setup = cls(**document)
        return replace(setup, trusted=tuple(setup.trusted))

    @property
    def worker_gib(self) -> float:
        """What one worker may take."""
        return self.memory_gib / self.workers

    @property
    def threads(self) -> int:
        """How many threads the libraries of one worker may start."""
        return max(1, int(self.cpus / self.workers))


def start(
    folder: Path, setup: Setup, *, connection: int, begun: int, out: int | None
) -> subprocess.Popen[bytes]:
    """Start a worker of a version on a connected socket. Call it in the main thread: the worker dies with the caller's.

    :param begun: a file in memory, :func:`counter`, where it counts the frames that it begins.
    :param out: where it prints; None inherits.
    :raises OSError: it cannot be started.
    """
    options = {
        "trusted": setup.trusted,
        "stream": setup.stream,
        "memory_gib": setup.worker_gib,
        "parent": os.getpid(),
    }
    mark = f"{os.getpid()}-{connection}-{time.monotonic_ns()}"
    child = subprocess.Popen(
        [setup.python, "-m", _WORKER, str(connection), str(begun), str(folder), json.dumps(options)],
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=out,
        cwd="/",
        env={**_environment(setup), _MARK: mark},
        pass_fds=(connection, begun),
        start_new_session=True,  # what it forks ends with it
    )
    _marks[child.pid] = f"{_MARK}={mark}".encode()
    return child


def counter() -> int:
    """Return a file in memory that holds one number, 0."""
    handle = os.memfd_create("begun")
    os.ftruncate(handle, _COUNT_BYTES)
    return handle


def counted(handle: int) -> int:
    """Return the number that such a file holds, and close it."""
    with os.fdopen(handle, "rb") as file:
        return int.from_bytes(file.read(_COUNT_BYTES), "little")


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a worker and what it forked; once it has ended, also what left its session, which its environment tells."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    if process.poll() is None or not (mark := _marks.pop(process.pid, b"")):
        return
    told: set[int] = set()  # one that waits for a dead disk is not gone yet, and is not waited for
    while left := {int(each.name) for each in Path("/proc").iterdir() if _is_marked(each, mark)} - told:
        for pid in left:  # again, since one may have forked meanwhile
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        told |= left


def _is_marked(process: Path, mark: bytes) -> bool:
    try:
        return process.name.isdigit() and mark in (process / "environ").read_bytes().split(b"\0")
    except OSError:  # it has ended, or is another user's
        return False


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
