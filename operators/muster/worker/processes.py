"""Kills all that the worker's processes leave behind."""

from __future__ import annotations

import contextlib
import os
import signal
import time

_LOOK_SECONDS = 0.002


def has_children() -> bool:
    """Whether a process below this one is still there, running or not yet reaped."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def end_descendants() -> int:
    """Kill and reap every process below this one; return how many there were.

    Needs :func:`muster.core.linux.adopt_orphans`: a killed process's children come to us and go in the next round.
    """
    ended = 0
    try:
        while True:
            if os.waitpid(-1, os.WNOHANG)[0]:
                continue  # it has ended by itself
            for pid in children():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            os.waitpid(-1, 0)
            ended += 1
    except ChildProcessError:
        return ended


def end_all(*, seconds: float) -> bool:
    """Kill and reap all that is below this process, and as a container's first process all that is in it.

    Needs :func:`muster.core.linux.adopt_orphans` where this is no first process.

    :return: whether it is known that nothing of it is left.
    """
    until = time.monotonic() + seconds
    while _kill_what_is_left():
        if time.monotonic() > until:
            return False
        time.sleep(_LOOK_SECONDS)
    return True


def _kill_what_is_left() -> bool:
    """Reap what has ended, and kill the rest; return whether there was any."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    if os.getpid() != 1:
        left = children()
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return bool(left)
    try:
        os.kill(-1, signal.SIGKILL)  # all of this namespace but us, also what was brought into it (kill(2))
    except ProcessLookupError:
        return False
    return True


def children() -> list[int]:
    """The processes whose parent this one is, read from /proc."""
    own = os.getpid()
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and _parent(name) == own]


def _parent(pid: str) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # the name in parentheses is the process's own choice and may hold spaces and parentheses
            return int(file.read().rpartition(b")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return -1
