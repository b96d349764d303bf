"""Tells what a replica uses: CPU, memory and, where it has cards, GPUs, as lines that become series of the job.

Names and units: ``cpu_cores`` (the mean since the last look), ``memory_gib``, and for each card, numbered from 0 within
the replica, ``gpuN_share`` (of the time in which it computed, 0 to 1) and ``gpuN_memory_gib``. See
:mod:`muster.core.series`.

Memory is what the kernel counts for the replica's own cgroup without the page cache that it may drop, as a kubelet
does; on a machine without such a cgroup it is the sum of its processes' resident sizes, where a page that ranks share
counts for each. A card's numbers are those of NVIDIA's management library (NVML).
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from muster.core.idle import QUIET, quiet
from muster.core.progress import use_lines
from muster.core.replica import Replica
from muster.worker.watches import Silence, Watch

_GIB = 1 << 30
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_OWN_GROUP = "muster."  # a backend gives a replica a cgroup of this name; in a pod the container has one
_MEMORY_FILES = (("memory.current", "inactive_file "), ("memory.usage_in_bytes", "total_inactive_file "))


class Usage(Watch):
    """What one replica uses; `share` is of a core.

    :param in_pod: whether the cgroup that is seen is the replica's own.
    """

    first_seconds, every_seconds, share = 2.0, 10.0, 200
    spent = staticmethod(time.thread_time)

    def __init__(self, replica: Replica, *, say: Callable[[str], None], in_pod: bool = False) -> None:
        super().__init__(say)
        self._name = f"{replica.role}-{replica.index}"
        self._group = memory_group(in_pod=in_pod)
        self._gpus = replica.job_role.resources.gpus
        self._wanted = replica.gpus
        self._cards: CardReader | None = None
        self._before = (time.monotonic(), 0.0)
        self.silence: Silence | None = None  # what hears of output, set before the ranks begin
        self._quiet: float | None = None
        self._looked = (time.monotonic(), 0)
        self._limit = replica.spec.idle_seconds
        if self._limit:
            self.every_seconds = min(self.every_seconds, self._limit / 6)

    def _look(self) -> None:
        begun, pids = time.monotonic(), list(descendants(os.getpid()))
        # Without a cgroup of its own a page that ranks share counts for each.
        used = sum(map(_resident_bytes, pids)) if self._group is None else _group_bytes(self._group)
        use = {"cpu_cores": self._cores(begun, pids), "memory_gib": used / _GIB}
        if self._gpus:
            self._cards = self._cards or CardReader(self._wanted)
            use |= self._cards.use()
        if self._limit and self.silence is not None:
            (since, lines), self._looked = self._looked, (begun, self.silence.line_count)
            shares, has_output = (
                [use[name] for name in use if name.endswith("_share")],
                self._looked[1] > lines,
            )
            cores = use["cpu_cores"]
            self._quiet = quiet(self._quiet, begun - since, cores=cores, shares=shares, has_output=has_output)
            use |= {} if self._quiet is None else {QUIET: self._quiet}
        self._say(use_lines(self._name, use))

    def _cores(self, now: float, pids: Sequence[int]) -> float:
        """Return the mean since the last look; the time of a process that ended is in its parent's."""
        total = sum(map(_cpu_seconds, pids)) + os.times().children_user + os.times().children_system
        (then, before), self._before = self._before, (now, total)
        return max(0.0, total - before) / max(now - then, 1e-3)


def memory_group(
    *, in_pod: bool, mount: str = "/sys/fs/cgroup", own: str = "/proc/self/cgroup"
) -> str | None:
    """Return the folder of the replica's own cgroup, version 1 or 2, None where it has none."""
    with suppress(OSError), open(own, encoding="utf-8") as file:
        for line in file:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            root = os.path.join(mount, "memory" if controllers else "")
            # in a pod without a namespace for cgroups the path is that on the node, and only the mount is seen
            for folder in (os.path.join(root, path.lstrip("/")), root if in_pod else ""):
                ours = in_pod or os.path.basename(folder).startswith(_OWN_GROUP)
                if (
                    folder
                    and ours
                    and any(os.path.exists(os.path.join(folder, name)) for name, _ in _MEMORY_FILES)
                ):
                    return folder
    return None


def descendants(pid: int) -> Iterator[int]:
    """Yield every process below `pid`; one that ends meanwhile may be left out."""
    waiting = [pid]
    while waiting:
        for child in _children(waiting.pop()):
            yield child
            waiting.append(child)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file:
                found += map(int, file.read().split())
    return found


def _cpu_seconds(pid: int) -> float:
    """Seconds of a process and of the children that it has waited for."""
    with suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/stat", "rb") as file:
        return sum(map(int, file.read().rpartition(b")")[2].split()[11:15])) / _TICKS
    return 0.0


def _resident_bytes(pid: int) -> int:
    with suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * _PAGE
    return 0


def _group_bytes(folder: str) -> int:
    for name, droppable in _MEMORY_FILES:
        with suppress(OSError, ValueError):
            with open(os.path.join(folder, name), encoding="ascii") as file:
                used = int(file.read())
            with open(os.path.join(folder, "memory.stat"), encoding="ascii") as file:
                cache = next((int(line.split()[1]) for line in file if line.startswith(droppable)), 0)
            return max(0, used - cache)
    return 0


class _Rates(ctypes.Structure):
    """nvmlUtilization_t: percent of the time in which a kernel ran, in which memory was read or written."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    """nvmlMemory_t, in bytes."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class CardReader:
    """The cards of one replica; none where there is no library, or it refuses.

    The library is only there where the driver is. It is loaded in the worker after its ranks were forked, and makes no
    context on a card.

    :param names: the cards as CUDA_VISIBLE_DEVICES names them, by number or UUID; all that are seen unless given.
    :param library: its file.
    """

    def __init__(self, names: Sequence[str] = (), *, library: str = "libnvidia-ml.so.1") -> None:
        self._nvml: Any = None
        self._cards: list[ctypes.c_void_p] = []
        with suppress(OSError, AttributeError):  # no driver here, or one without a function of these
            nvml = ctypes.CDLL(library)
            if nvml.nvmlInit_v2() == 0:
                self._nvml, count = nvml, ctypes.c_uint()
                if not names and nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0:
                    names = [str(number) for number in range(count.value)]
                self._cards = [card for name in names if (card := self._card(name)) is not None]

    def use(self) -> dict[str, float]:
        """Return what each card does now; what it does not say is left out."""
        found: dict[str, float] = {}
        for number, card in enumerate(self._cards):
            rates, memory = _Rates(), _Memory()
            if self._nvml.nvmlDeviceGetUtilizationRates(card, ctypes.byref(rates)) == 0:
                found[f"gpu{number}_share"] = rates.gpu / 100
            if self._nvml.nvmlDeviceGetMemoryInfo(card, ctypes.byref(memory)) == 0:
                found[f"gpu{number}_memory_gib"] = memory.used / _GIB
        return found

    def _card(self, name: str) -> ctypes.c_void_p | None:
        card = ctypes.c_void_p()
        if name.isdigit():
            code = self._nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(int(name)), ctypes.byref(card))
        else:
            code = self._nvml.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(card))
        return card if code == 0 else None
