"""Tells what a replica uses: CPU, memory and, where it has cards, GPUs, as lines that become series of the job.

Names and units: ``cpu_cores`` (the mean since the last look), ``memory_gib``, and for each card, numbered from 0 within
the replica, ``gpuN_share`` (of the time in which it computed, 0 to 1) and ``gpuN_memory_gib``. See
:mod:`muster.core.series`.

Memory is what the kernel counts for the replica's own cgroup without the page cache that it may drop, as a kubelet
does; on a machine without such a cgroup it is the sum of its processes' resident sizes, where a page that ranks share
counts for each.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from muster.core.progress import use_lines
from muster.core.replica import Replica

if TYPE_CHECKING:
    from muster.worker.cards import CardReader

FIRST_SECONDS, EVERY_SECONDS = 2.0, 10.0
_SHARE = 200  # at most one part in this many of a core goes into it
_GIB = 1 << 30
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_OWN_GROUP = "muster."  # a backend gives a replica a cgroup of this name; in a pod the container has one
_MEMORY_FILES = (("memory.current", "inactive_file "), ("memory.usage_in_bytes", "total_inactive_file "))


class Usage:
    """What one replica uses: looks every ten seconds, or less often where a look takes long.

    :param say: writes lines to the worker's output.
    :param in_pod: whether the cgroup that is seen is the replica's own.
    """

    def __init__(self, replica: Replica, *, say: Callable[[str], None], in_pod: bool = False) -> None:
        self._say, self._name = say, f"{replica.role}-{replica.index}"
        self._group = memory_group(in_pod=in_pod)
        self._gpus = replica.job_role.resources.gpus
        self._wanted = replica.gpus
        self._cards: CardReader | None = None
        self._before = (time.monotonic(), 0.0)
        self._due = time.monotonic() + FIRST_SECONDS

    def left(self) -> float:
        """Seconds until :meth:`look` is due."""
        return self._due - time.monotonic()

    def look(self) -> None:
        """Say what the replica uses, if it is due."""
        begun = time.monotonic()
        if begun < self._due:
            return
        spent = time.thread_time()
        pids = list(descendants(os.getpid()))
        use = {"cpu_cores": self._cores(begun, pids), "memory_gib": self._memory(pids) / _GIB}
        use |= self._of_cards()
        self._say(use_lines(self._name, use))
        took = time.thread_time() - spent
        self._due = time.monotonic() + max(EVERY_SECONDS, _SHARE * took)

    def _of_cards(self) -> dict[str, float]:
        if not self._gpus:
            return {}
        if self._cards is None:
            from muster.worker.cards import CardReader  # most replicas have no card

            self._cards = CardReader(self._wanted)
        return self._cards.use()

    def _cores(self, now: float, pids: Sequence[int]) -> float:
        """Return the mean since the last look; the time of a process that ended is in its parent's."""
        total = sum(map(_cpu_seconds, pids)) + os.times().children_user + os.times().children_system
        (then, before), self._before = self._before, (now, total)
        return max(0.0, total - before) / max(now - then, 1e-3)

    def _memory(self, pids: Sequence[int]) -> float:
        if self._group is not None:
            return _group_bytes(self._group)
        return sum(map(_resident_bytes, pids))


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
