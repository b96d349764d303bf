"""Starts workers that die with their supervisor, before the supervisor itself has been imported.

A worker needs about as long to start as its supervisor does, so both start at once: the workers are
spawned first, with nothing but the standard library, and wait on their stdin to be told what they
are. From prctl(2): a child subreaper is given the orphans of its descendants, so nothing that a job
starts can leave its supervisor's tree; a parent-death signal is sent when the thread that forked ends.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from muster.core import forking
from muster.core.linux import adopt_orphans

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
    told, tell = os.pipe()
    pid, output = forking.spawn(command, environment=environment, stdin=told)
    os.close(told)
    return Worker(pid, tell, output)


def _keep_to_ourselves() -> None:
    """Have no child inherit the open files: the process that holds the claim's lock counts as the supervisor."""
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 names only
        try:
            if int(name) > 2:
                os.set_inheritable(int(name), False)
        except OSError:  # that of the listing itself
            continue
