"""Memory as a real limit, CPUs as shares: cgroups where the machine lets us make them.

With a cgroup (v1 or v2) the kernel ends what outgrows its memory, and counts it. Without one the
supervisor adds up the replica's processes and ends them itself; that is later by one look at most.
CPUs are a weight against other busy processes, never a limit: on an idle machine a job may use all CPUs.
Without a cgroup all weigh the same.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from muster.backends.local.machine import GIB
from muster.backends.local.processes import descendants, end_strays, kill, variables
from muster.core.replica import Replica

_CGROUPS = Path("/sys/fs/cgroup")
_PREFIX = "muster."  # a job's mark holds one dot, so no job's name begins with another's
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, kw_only=True)
class Overrun:
    """A replica outgrew its memory; `rank` is the one that was ended, where it is known."""

    used_gib: float
    limit_gib: float
    rank: int | None = None


def limit_memory(replica: Replica, *, mark: str) -> Cgroup | Polled:
    """Limit one replica by a cgroup if one can be made here, else by watching it.

    :param mark: of the job and its home.
    """
    name = f"{_PREFIX}{mark}.{replica.attempt}-{replica.role}-{replica.index}"
    wanted = replica.job_role.resources
    return make_cgroup(name, wanted.memory_gib, cpus=wanted.cpus) or Polled(wanted.memory_gib)


def end_left_behind(mark: str, *, but: Collection[int] = ()) -> None:
    """End what a job whose supervisor was lost left running, and take its limits away.

    :param but: processes of the supervisor that takes it up.
    :raises BackendError: some would not die within ten seconds.
    """
    end_strays(mark, also=left_behind(mark), but=but)
    left_behind(mark)  # those that held them are empty only now


def left_behind(mark: str, *, mount: Path = _CGROUPS) -> list[int]:
    """Return what still runs under the limits of a job whose supervisor was lost; delete those that are empty."""
    pids: set[int] = set()
    for folder, inner, _ in os.walk(mount):
        for name in inner:
            if name.startswith(f"{_PREFIX}{mark}."):
                group = Cgroup(Path(folder, name), _V1, 0.0)
                pids.update(group.members())
                group.close()
    return sorted(pids)


def make_cgroup(name: str, limit_gib: float, *, cpus: float = 1, mount: Path = _CGROUPS) -> Cgroup | None:
    """Make a cgroup called `name` below ours, version 1 or 2, or return None where we may not."""
    for parent, files in _parents(mount):
        folder = parent / name
        limit = str(int(limit_gib * GIB))
        try:
            folder.mkdir(exist_ok=True)
            (folder / files.limit).write_text(limit)
        except OSError:
            _remove(folder)
            continue
        with suppress(OSError):  # where swap is not counted, there is none to run into
            (folder / files.swap).write_text(files.swap_limit or limit)
        return Cgroup(folder, files, limit_gib, _share(name, folder, files, cpus, mount))
    return None


def _share(name: str, memory: Path, files: _Files, cpus: float, mount: Path) -> Path | None:
    """Give a cgroup its weight; return its folder where CPUs have a tree of their own (v1), None elsewhere."""
    folder = memory if files is _V2 else mount / "cpu" / _own_groups().get("cpu", "").lstrip("/") / name
    least, most = files.weights
    weight = min(max(int(cpus * files.weight_per_cpu), least), most)
    try:
        folder.mkdir(exist_ok=True)
        (folder / files.weight).write_text(str(weight))
    except OSError:
        return None  # CPUs are not ours to share out here: all weigh the same
    return None if folder == memory else folder


@dataclass(frozen=True, kw_only=True)
class _Files:
    """What the two versions of cgroups call the same things."""

    limit: str
    swap: str
    swap_limit: str | None
    peak: str
    events: str
    weight: str
    weight_per_cpu: int
    weights: tuple[int, int]


_V1 = _Files(
    limit="memory.limit_in_bytes",
    swap="memory.memsw.limit_in_bytes",
    swap_limit=None,
    peak="memory.max_usage_in_bytes",
    events="memory.oom_control",
    weight="cpu.shares",
    weight_per_cpu=1024,
    weights=(2, 262_144),
)
_V2 = _Files(
    limit="memory.max",
    swap="memory.swap.max",
    swap_limit="0",
    peak="memory.peak",
    events="memory.events",
    weight="cpu.weight",
    weight_per_cpu=100,
    weights=(1, 10_000),
)


@dataclass(frozen=True)
class Cgroup:
    """A limit that the kernel keeps.

    :param shares: the folder of its CPU shares, where that is another.
    """

    folder: Path
    files: _Files
    limit_gib: float
    shares: Path | None = None

    def enter(self, pid: int) -> None:
        """Put a worker, and so all that it starts from now on, under the limit."""
        for folder in filter(None, (self.folder, self.shares)):
            (folder / "cgroup.procs").write_text(str(pid))

    def overrun(self, pid: int) -> Overrun | None:  # noqa: ARG002 the kernel knows who is in it
        """Tell whether the replica outgrew its limit, so that the kernel had to end one of its processes."""
        for line in self._read(self.files.events).splitlines():
            if line.startswith("oom_kill ") and int(line.split()[1]):
                used = self._read(self.files.peak).strip()
                return Overrun(
                    used_gib=int(used) / GIB if used.isdigit() else self.limit_gib, limit_gib=self.limit_gib
                )
        return None

    def members(self) -> list[int]:
        """Return the processes in the cgroup."""
        return [int(pid) for pid in self._read("cgroup.procs").split()]

    def close(self) -> None:
        """Delete the cgroup, once nothing runs under it."""
        for folder in filter(None, (self.folder, self.shares)):
            _remove(folder)

    def _read(self, name: str) -> str:
        try:
            return (self.folder / name).read_text()
        except OSError:
            return ""


@dataclass(frozen=True)
class Polled:
    """A limit that we keep ourselves."""

    limit_gib: float

    def enter(self, pid: int) -> None:
        """Nothing to do: the replica's processes are found below its worker."""

    def overrun(self, pid: int) -> Overrun | None:
        """Add up the replica's processes and kill its ranks if that is too much.

        The resident sizes are quick to read but count shared pages once for each process, so only a
        sum above the limit is looked at again in proportional sizes.
        """
        pids = descendants(pid)
        limit = self.limit_gib * GIB
        if sum(map(_resident, pids)) <= limit:
            return None
        sizes = {one: _proportional(one) for one in pids}
        if sum(sizes.values()) <= limit:
            return None
        rank = _rank(max(sizes, key=lambda one: sizes[one]))
        for one in pids:
            kill(one)
        return Overrun(used_gib=sum(sizes.values()) / GIB, limit_gib=self.limit_gib, rank=rank)

    def close(self) -> None:
        """Nothing to take away."""


def _parents(mount: Path) -> list[tuple[Path, _Files]]:
    """Where a cgroup of ours may lie: below our own, so that what limits us limits the job too."""
    own = _own_groups()
    found: list[tuple[Path, _Files]] = []
    if "memory" in own:
        root = mount / "memory"
        found += [(root / own["memory"].lstrip("/"), _V1), (root, _V1)]
    if "" in own:
        found += [(parent, _V2) for parent in _delegated(mount, own[""].lstrip("/"))]
    return [(parent, files) for parent, files in found if os.access(parent, os.W_OK)]


def _delegated(mount: Path, own: str) -> list[Path]:
    """Return the nearest group above ours that hands memory on: a group with processes may not."""
    start = mount / own
    for parent in (start, *start.parents):
        if not parent.is_relative_to(mount):
            break
        try:
            if "memory" in (parent / "cgroup.subtree_control").read_text().split():
                return [parent]
        except OSError:
            continue
    return []


def _own_groups() -> dict[str, str]:
    """Our own group by controller; version 2 has the empty name."""
    groups = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        groups.update(dict.fromkeys(controllers.split(","), path))
    return groups


def _remove(folder: Path) -> None:
    with suppress(OSError):  # processes are left, or it was never made
        folder.rmdir()


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except (OSError, IndexError):
        return 0


def _proportional(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def _rank(pid: int) -> int | None:
    for name in (b"MUSTER_RANK=", b"RANK="):
        for pair in variables(pid):
            if pair.startswith(name) and pair[len(name) :].isdigit():
                return int(pair[len(name) :])
    return None
