"""Processes as Linux knows them: who is who across pid reuse, what a job left running, and its end.

From proc(5): field 22 of ``/proc/PID/stat`` is the start time in clock ticks since boot, so (boot id,
pid, start time) names one process for ever.
"""

from __future__ import annotations

import os
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from muster.core.errors import BackendError

JOB_VARIABLE = "MUSTER_JOB_ID"
MARK_VARIABLE = "MUSTER_JOB_MARK"

_START_TIME = 21  # field 22, counted from 0
_PARENT = 3
_SESSION = 5
_KILL_SECONDS = 10.0
_LOOK_SECONDS = 0.002


@dataclass(frozen=True, kw_only=True)
class Process:
    """One process, told apart from a later one that was given the same pid."""

    pid: int
    boot: str
    started: int

    @classmethod
    def find(cls, pid: int) -> Process | None:
        """Return the process that has this pid now, or None; a zombie is none."""
        fields = _stat(pid)
        if fields is None or fields[2] == "Z":
            return None
        boot = (
            Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        )  # another whenever the machine starts
        return cls(pid=pid, boot=boot, started=int(fields[_START_TIME]))

    @classmethod
    def me(cls) -> Process:
        """Return this process."""
        found = cls.find(os.getpid())
        assert found is not None
        return found

    @property
    def alive(self) -> bool:
        """Whether this very process still runs."""
        return Process.find(self.pid) == self

    def kill(self) -> None:
        """Kill this very process, if it still runs."""
        with suppress(ProcessLookupError):
            handle = os.pidfd_open(self.pid)
            try:
                if self.alive:  # asked after the handle was opened, so the handle is that of this process
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
            finally:
                os.close(handle)


def descendants(root: int) -> list[int]:
    """Return every process below `root`, zombies left out."""
    children: dict[int, list[int]] = defaultdict(list)
    for pid in _pids():
        fields = _stat(pid)
        if fields is not None:
            children[int(fields[_PARENT])].append(pid if fields[2] != "Z" else -pid)
    found: list[int] = []
    waiting = [root]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            waiting.append(abs(child))
            if child > 0:
                found.append(child)
    return found


def children(parent: int) -> list[int]:
    """Return the processes that `parent` started itself, zombies left out.

    From proc(5): each thread's are listed in ``task/TID/children``, for a fraction of a look at all there are.
    """
    try:
        lists = [file.read_text() for file in Path(f"/proc/{parent}/task").glob("*/children")]
    except (FileNotFoundError, ProcessLookupError):  # a thread, or all of them, ended just now
        lists = []
    if not lists:  # a kernel without them
        every = ((pid, _stat(pid)) for pid in _pids())
        return [
            pid for pid, fields in every if fields and int(fields[_PARENT]) == parent and fields[2] != "Z"
        ]
    found = (int(pid) for listed in lists for pid in listed.split())
    return [pid for pid in found if (fields := _stat(pid)) and fields[2] != "Z"]


def marked(mark: str) -> list[int]:
    """Return every process of this user that was started with MUSTER_JOB_MARK=`mark`."""
    pair = f"{MARK_VARIABLE}={mark}".encode()
    return [pid for pid in _pids() if pid != os.getpid() and pair in variables(pid)]


def ranks(mark: str) -> list[int]:
    """Return the ranks that run now of the job with this mark, in their order.

    A rank is what a worker started in a session of its own. Workers are started in the order of their
    replicas, and each starts its ranks in theirs; what an orphan of a rank is comes after them.
    """
    found = {pid: fields for pid in marked(mark) if (fields := _stat(pid)) and fields[2] != "Z"}
    age = {pid: (int(fields[_START_TIME]), pid) for pid, fields in found.items()}
    parent = {pid: int(fields[_PARENT]) for pid, fields in found.items()}
    below = [
        pid
        for pid, fields in found.items()
        if int(fields[_SESSION]) == pid and parent[pid] in found and parent[parent[pid]] not in found
    ]
    return sorted(below, key=lambda pid: (age[parent[pid]], age[pid]))


def variables(pid: int) -> list[bytes]:
    """Return the ``NAME=value`` pairs that a process was started with; none where we may not look."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def end_descendants() -> None:
    """Kill all that is left below this process, a subreaper, reap it, and return when it is gone.

    :raises BackendError: some would not die within ten seconds.
    """
    _end(lambda: [] if _reap() else descendants(os.getpid()))


def end_strays(mark: str, *, also: Iterable[int] = (), but: Collection[int] = ()) -> None:
    """Kill all that a job whose supervisor was lost left running, and return when it is gone.

    :param mark: of the job and its home (:meth:`.places.Places.mark`).
    :param also: processes known from elsewhere, such as a cgroup.
    :param but: processes that are not meant: the next supervisor has begun its own workers by then.
    :raises BackendError: some would not die within ten seconds.
    """
    known = set(also)
    _end(lambda: [pid for pid in (known | set(marked(mark))) - set(but) if Process.find(pid) is not None])


def _end(left: Callable[[], list[int]]) -> None:
    deadline = time.monotonic() + _KILL_SECONDS
    while pids := left():
        if time.monotonic() > deadline:
            raise BackendError(
                f"processes {sorted(pids)} do not die when killed: look at what they wait for (a device or "
                "a network file system?) and end them by hand"
            )
        for pid in pids:
            kill(pid)
        time.sleep(_LOOK_SECONDS)


def kill(pid: int) -> None:
    """Kill a process that may have ended by now."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _reap() -> bool:
    """Take the exit codes of orphans that became ours; whether there is no child of ours any more."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return True
    return False


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 names only


def _stat(pid: int) -> list[str] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    head, _, tail = text.rpartition(")")  # the name between may hold spaces and brackets
    return [*head.partition(" (")[::2], *tail.split()]
