"""What this machine has: memory, GPUs, and a port where a gang can meet."""

from __future__ import annotations

import os
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path

from muster.core.errors import BackendError

GIB = 1 << 30
_GPU_FOLDER = Path("/proc/driver/nvidia/gpus")
_WSL_GPU = Path("/dev/dxg")
# Below the range from which Linux gives ports to outgoing connections (32768 and up by default), so
# that Linux gives no other program a gang's port between its choice and the moment rank 0 listens.
_PORTS = range(20_000, 32_000)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What jobs may claim here.

    :param gpus: the cards' names as CUDA_VISIBLE_DEVICES wants them.
    """

    memory_gib: float
    gpus: tuple[str, ...] = ()

    @classmethod
    def here(cls) -> Machine:
        """Look at this machine: its memory, or its container's if that is less, and its NVIDIA cards."""
        return cls(memory_gib=_memory_bytes() / GIB, gpus=_gpus())


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0))


def free_port(taken: Container[int]) -> int:
    """Return a loopback port on which nothing listens, and which no other gang has claimed."""
    start = os.getpid() * 7 % len(_PORTS)
    for step in range(len(_PORTS)):
        port = _PORTS[(start + step) % len(_PORTS)]
        if port not in taken and _can_listen(port):
            return port
    raise BackendError(
        f"no free port from {_PORTS.start} to {_PORTS.stop - 1}: end some of what listens there"
    )


def _can_listen(port: int) -> bool:
    import socket  # not before it is needed: a supervisor's start is part of every job's time

    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _memory_bytes() -> int:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in (
        "/sys/fs/cgroup/memory.max",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
    ):
        try:
            text = Path(limit).read_text().strip()
        except OSError:
            continue
        if text.isdigit():  # "max" is no limit
            total = min(total, int(text))
    return total


def _gpus() -> tuple[str, ...]:
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return tuple(name for name in (part.strip() for part in chosen.split(",")) if name and name != "-1")
    try:
        return tuple(str(index) for index in range(len(os.listdir(_GPU_FOLDER))))  # noqa: PTH208 names only
    except OSError:  # WSL2 has cards without that folder; elsewhere asking would only take time
        return _gpus_by_tool() if _WSL_GPU.exists() else ()


def _gpus_by_tool() -> tuple[str, ...]:
    import shutil
    import subprocess

    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    try:
        listing = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ()  # a driver that does not answer has no card to offer
    lines = [line for line in listing.stdout.splitlines() if line.startswith("GPU ")]
    return tuple(str(index) for index in range(len(lines)))
