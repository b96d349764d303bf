"""Control groups as the register of what runs: a group for each program, found by its name alone.

A file with a pid outlives the process, and a child that lost its parent has none. A group knows all
that was ever started in it, and the kernel takes out what has ended, whatever ended it.

Both versions: on 1 a process is looked for in the hierarchy of ``pids``, and a node's pods get a group
in each hierarchy, as the kubelet expects.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

from muster.core.errors import BackendError

_SECONDS = 15.0
_LOOK_SECONDS = 0.01
_CONTROLLERS = "+cpu +cpuset +memory +pids"
# By default all pods of a node get as much of a busy machine as one process beside them; an Airflow's probes fail then.
_SHARES = {"cpu.shares": "8192", "cpu.weight": "800"}


def create(name: str) -> None:
    """Make a group in every hierarchy, with the processors and memory of the machine, and the CPU of eight processes."""
    one, two = _hierarchies()
    for top in one or two:
        path = top
        for part in Path(name).parts:
            if not one:
                (path / "cgroup.subtree_control").write_text(_CONTROLLERS)
            path = path / part
            path.mkdir(exist_ok=True)
            _inherit_cpuset(path)
            for file, share in _SHARES.items():  # version 1's, and version 2's
                if (path / file).exists():
                    (path / file).write_text(share)


def register(name: str) -> Path:
    """Make a group for one program's processes, and return the file that a process enters it by."""
    path = _register() / name
    path.mkdir(parents=True, exist_ok=True)
    return path / "cgroup.procs"


def pids(name: str) -> list[int]:
    """Return every process of a group and the groups below it."""
    found: list[int] = []
    for folder, _, files in os.walk(_register() / name):
        if "cgroup.procs" in files:
            found += [int(line) for line in _lines(Path(folder) / "cgroup.procs")]
    return found


def below(name: str) -> list[str]:
    """Return the names of the groups right below one."""
    try:
        return sorted(path.name for path in (_register() / name).iterdir() if path.is_dir())
    except FileNotFoundError:
        return []


def kill(name: str) -> None:
    """Kill all of a group, until nothing is left, and what was forked meanwhile neither.

    :raises BackendError: something does not die: it hangs in the kernel.
    """
    end(f"group {name}", lambda: pids(name))


def end(what: str, find: Callable[[], Sequence[int]]) -> None:
    """Kill all processes that are found, until none is any more.

    :param what: whose they are, for the message.
    :raises BackendError: something does not die: it hangs in the kernel.
    """
    deadline = time.monotonic() + _SECONDS
    while left := find():
        if time.monotonic() > deadline:
            raise BackendError(f"{what}: processes {list(left[:10])} do not end after SIGKILL")
        for pid in left:
            _kill(pid)
        time.sleep(_LOOK_SECONDS)


def remove(name: str) -> None:
    """Remove a group and all below it, wherever it is; none is fine. What entered it meanwhile is killed.

    :raises BackendError: a group stays busy.
    """
    one, two = _hierarchies()
    for top in (*one, *two):
        for folder, _, _ in os.walk(top / name, topdown=False):
            _rmdir(Path(folder), group=name)


def left(name: str) -> list[Path]:
    """Return the folders of a group that are there, one a hierarchy."""
    one, two = _hierarchies()
    return [top / name for top in (*one, *two) if (top / name).exists()]


@cache
def _hierarchies() -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """Where version 1's hierarchies are mounted, and version 2's."""
    kinds: dict[str, dict[Path, None]] = {"cgroup": {}, "cgroup2": {}}
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, target, kind, *_ = line.split()
        if kind in kinds:
            kinds[kind][Path(target)] = None
    if not any(kinds.values()):
        raise BackendError("no cgroup file system is mounted: a Kubernetes node needs one")
    return tuple(kinds["cgroup"]), tuple(kinds["cgroup2"])


@cache
def _register() -> Path:
    one, two = _hierarchies()
    return next((top for top in one if "pids" in top.name.split(",")), (*one, *two)[0])


def _inherit_cpuset(path: Path) -> None:
    for name in ("cpuset.cpus", "cpuset.mems"):  # version 1 leaves them empty, and then nothing may enter
        own, above = path / name, path.parent / name
        if above.exists() and own.exists() and not own.read_text().strip():
            own.write_text(above.read_text())


def _lines(path: Path) -> Iterator[str]:
    try:
        yield from path.read_text().splitlines()
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENODEV):  # the group was removed meanwhile
            raise


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _rmdir(folder: Path, *, group: str) -> None:
    deadline = time.monotonic() + _SECONDS
    while True:
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                raise BackendError(f"cannot remove group {folder}: {error}") from error
            kill(group)
            time.sleep(_LOOK_SECONDS)
        else:
            return
