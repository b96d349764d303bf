"""Tells whether the kernel killed something here for want of memory."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

# Of this container's own control group, as it sees itself; versions 2 and 1 of cgroups.
_COUNTS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")


def oom_kills(files: Sequence[str] = _COUNTS) -> int:
    """Return how many processes of this container the kernel has killed because its memory limit was reached."""
    for path in files:
        with suppress(OSError), open(path, encoding="ascii") as file:
            return next((int(line.split()[1]) for line in file if line.startswith("oom_kill ")), 0)
    return 0
