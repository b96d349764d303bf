"""Starts processes that die with the worker, and ends every process that they leave behind."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Mapping, Sequence

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when `parent` dies; exit at once where it is dead already."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, so that none is lost from sight."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def spawn(arguments: Sequence[str], *, environment: Mapping[str, str], folder: str) -> tuple[int, int]:
    """Start a process in a session of its own; return its pid and the end of a pipe with its output.

    stdout and stderr share the pipe, so their order is kept. A program that cannot be run ends with
    status 127 and says why in its output.
    """
    parent = os.getpid()
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            _become(arguments, environment, folder, write, parent)
        except BaseException as error:  # the copy of the worker must never run on
            os.write(write, f"cannot run {arguments[0]!r}: {error}\n".encode())
        finally:
            os._exit(127)
    os.close(write)
    os.set_blocking(read, False)
    return pid, read


def _become(
    arguments: Sequence[str], environment: Mapping[str, str], folder: str, output: int, parent: int
) -> None:
    os.setsid()
    die_with_parent(parent)
    signal.set_wakeup_fd(-1)
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, other programs expect them
        signal.signal(ignored, signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(folder)
    os.execvpe(arguments[0], list(arguments), dict(environment))


def end_descendants() -> int:
    """Kill and reap every process below this one; return how many there were.

    Needs :func:`adopt_orphans`: a killed process's children come to us and go in the next round.
    """
    ended = 0
    try:
        while True:
            if os.waitpid(-1, os.WNOHANG)[0]:
                continue  # it had ended by itself
            for pid in children():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            os.waitpid(-1, 0)
            ended += 1
    except ChildProcessError:
        return ended


def children() -> list[int]:
    """The processes whose parent this one is, read from /proc."""
    own, found = os.getpid(), []
    for name in os.listdir("/proc"):
        if name.isdigit() and _parent(name) == own:
            found.append(int(name))
    return found


def _parent(pid: str) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # the name in parentheses is the process's own choice and may hold spaces and parentheses
            return int(file.read().rpartition(b")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return -1


def _prctl(option: int, value: int) -> None:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}): {os.strerror(code)}")
