"""The replicas of an elastic gang beyond its least number: taken where there is room, given back to who waits.

Each holds a claim of its own, beside the gang's. It is of the lowest priority, so the queue takes it before anything
else that may be interrupted. A gang shrinks at once, and grows at a checkpoint: whatever it has, it begins
another attempt, which all of its replicas join.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from muster.backends.local.places import JobFolder
from muster.backends.local.queue import Claim, JobQueue
from muster.core.job import JobSpec
from muster.volumes.tree import files_of

LOOK_SECONDS = 1.0

_Seen = Mapping[str, tuple[int, int, int]]  # inode, size and time of change by path


@dataclass
class Extras:
    """What one job holds beyond its own claim.

    :param claim: the job's own.
    :param clock: seconds, from any start.
    """

    spec: JobSpec
    claim: Claim
    queue: JobQueue
    folder: JobFolder
    clock: Callable[[], float] = time.monotonic
    _held: dict[int, tuple[Claim, int]] = field(default_factory=dict)  # by index, with the lock of each
    _growth: Growth | None = None
    _next: float = 0.0

    @property
    def members(self) -> tuple[int, ...]:
        """The indices of the replicas for which there is room."""
        return (*range(self.spec.least), *sorted(self._held))

    @property
    def cards(self) -> list[str]:
        """The cards of all members, in their order."""
        return [
            *self.claim.gpus,
            *(card for index in sorted(self._held) for card in self._held[index][0].gpus),
        ]

    def take(self) -> int:
        """Take room for more replicas, as far as no job that waits needs it; return for how many."""
        wanted = [index for index in range(self.spec.least, self.spec.replicas) if index not in self._held]
        taken = self.queue.grow(self.spec, self.claim, wanted) if wanted else []
        for claim, handle in taken:
            self.folder.forget_giving_back(claim.extra)  # what it was asked for holding the claim before
            self._held[claim.extra] = claim, handle
        self._growth = None
        return len(taken)

    def asked(self) -> dict[int, str]:
        """Return which members were asked to give their room back, each with who waits for it."""
        return {
            index: self.folder.for_whom(index)
            for index in self._held
            if self.folder.gives_back(index).exists()
        }

    def give_back(self, *indices: int) -> None:
        """Give the room of some members back: nothing of them runs any more."""
        for index in indices:
            claim, handle = self._held.pop(index)
            self.queue.leave(claim.job_id, handle, extra=index)
            self.folder.forget_giving_back(index)

    def give_all_back(self) -> None:
        """Give back all that is held here."""
        self.give_back(*self._held)

    def may_grow(self, checkpoints: Path) -> bool:
        """Whether there is room for one more, and a checkpoint was written since it came; looks once a second."""
        if len(self.members) == self.spec.replicas or self.clock() < self._next:
            return False
        self._next = self.clock() + LOOK_SECONDS
        if not self.queue.is_room_for_more(self.spec, self.claim):
            self._growth = None
            return False
        if self._growth is None:
            self._growth = Growth(checkpoints)
            return False
        return self._growth.look()


class Growth:
    """Looks for a checkpoint that is whole, and newer than the first look.

    It is whole where a file is as it was at the look before, or another file has taken its name: what is written in
    place all the time never counts.
    """

    def __init__(self, checkpoints: Path) -> None:
        self._folder = checkpoints
        self._first = self._before = _seen(checkpoints)

    def look(self) -> bool:
        """Look again, a while after the look before."""
        before, self._before = self._before, _seen(self._folder)
        return any(
            path in before
            and before[path] != self._first.get(path)
            and (now == before[path] or now[0] != before[path][0])
            for path, now in self._before.items()
        )


def _seen(folder: Path) -> _Seen:
    found = {}
    with suppress(OSError):  # a rank moves or deletes what is listed: the next look sees what is there then
        for entry in files_of(folder):
            stat = entry.stat(follow_symlinks=False)
            found[entry.path] = stat.st_ino, stat.st_size, stat.st_mtime_ns
    return found
