"""Starts workers that die with their supervisor, before the supervisor itself has been imported.

A worker needs about as long to start as its supervisor does, so both start at once: the workers are
spawned first, with nothing but the standard library, and wait on their stdin to be told what they
are. From prctl(2): a child subreaper is given the orphans of its descendants, so nothing that a job
starts can leave its supervisor's tree; a parent-death signal is sent when the thread that forked ends.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from muster.core.linux import adopt_orphans, die_with

STDIN = "/dev/stdin"


class Worker(NamedTuple):
    """A worker's process, the end of a pipe to tell it what it is, and one to read what it says."""

    pid: int
    tell: int
    output: int


def spawn_early(handle: int) -> tuple[dict[str, Any], list[Worker]]:
    """Read what must be on no disk from a pipe, and start the workers if their image is ready.

    :returns: what was told, with the secrets by variable, and one worker for each replica or none at all.
    """
    adopt_orphans()
    _keep_to_ourselves()
    with os.fdopen(handle, "rb") as pipe:
        told = json.loads(pipe.read())
    workers = [spawn(told["command"], told["environment"]) for _ in range(told["workers"])]
    return told, workers


def spawn(command: Sequence[str], environment: Mapping[str, str]) -> Worker:
    """Start a worker; what it says goes into one pipe, stdout and stderr in their order."""
    parent = os.getpid()
    (told, tell), (output, write) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            _become(command, environment, told, write, parent)
        except BaseException as error:  # the copy of the supervisor must never run on
            os.write(write, f"cannot start the worker {command[0]}: {error}\n".encode())
        finally:
            os._exit(127)
    os.close(told)
    os.close(write)
    os.set_blocking(output, False)
    return Worker(pid, tell, output)


def _keep_to_ourselves() -> None:
    """Have no child inherit the open files: the process that holds the claim's lock counts as the supervisor."""
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 names only
        try:
            if int(name) > 2:
                os.set_inheritable(int(name), False)
        except OSError:  # that of the listing itself
            continue


def _become(
    command: Sequence[str], environment: Mapping[str, str], told: int, output: int, parent: int
) -> None:
    os.setsid()
    die_with(parent)
    for changed in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM):
        signal.signal(changed, signal.SIG_DFL)
    os.dup2(told, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.execve(command[0], list(command), dict(environment))  # noqa: S606 no shell is wanted
