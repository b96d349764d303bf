"""The replicas of an elastic gang beyond its least number: taken where there is room, given back to who waits.

Each has a claim of its own, beside the gang's. It is of the lowest priority, so the queue takes it before anything
else that may be interrupted. A gang shrinks at once, and grows at a checkpoint: whatever it has, it begins
another attempt, which all of its replicas join.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path

from muster.backends.jobs.sizing import LOOK_SECONDS, Growth
from muster.backends.local.places import JobFolder
from muster.backends.local.queue import Claim, JobQueue
from muster.core.job import JobSpec
from muster.volumes.tree import files_of

_MOST_FILES = 10_000


@dataclass
class Extras:
    """What one job claims beside its own claim.

    :param claim: the job's own.
    :param clock: seconds, from any start.
    """

    spec: JobSpec
    claim: Claim
    queue: JobQueue
    folder: JobFolder
    clock: Callable[[], float] = time.monotonic
    _held: dict[int, tuple[Claim, int]] = field(default_factory=dict)  # by number, with the lock of each
    _growth: Growth | None = None
    _next: float = 0.0

    @property
    def replicas(self) -> int:
        """How many replicas there is room for."""
        return self.spec.least + len(self._held)

    @property
    def cards(self) -> list[str]:
        """The cards of all replicas."""
        return [*self.claim.gpus, *(card for claim, _ in self._held.values() for card in claim.gpus)]

    def take(self) -> int:
        """Take room for more replicas, as far as no job that waits needs it; return for how many."""
        numbers = range(1, self.spec.replicas - self.spec.least + 1)
        wanted = [number for number in numbers if number not in self._held]
        taken = self.queue.grow(self.spec, self.claim, wanted) if wanted else []
        for claim, handle in taken:
            self.folder.forget_giving_back(claim.extra)  # what it was asked for holding the claim before
            self._held[claim.extra] = claim, handle
        self._growth = None
        return len(taken)

    def asked(self) -> dict[int, str]:
        """Return the numbers of those that were asked for, each with who waits for its room."""
        asked = [number for number in self._held if self.folder.gives_back(number).exists()]
        return {number: self.folder.for_whom(number) for number in asked}

    def give_back(self, *numbers: int) -> None:
        """Give some of them back: nothing runs there any more."""
        for number in numbers:
            claim, handle = self._held.pop(number)
            self.queue.leave(claim.job_id, handle, extra=number)
            self.folder.forget_giving_back(number)

    def give_all_back(self) -> None:
        """Give back all that is held here."""
        self.give_back(*self._held)

    def may_grow(self, checkpoints: Path) -> bool:
        """Whether there is room for one more, and a checkpoint was written since it came; looks once a second."""
        if self.replicas == self.spec.replicas or self.clock() < self._next:
            return False
        self._next = self.clock() + LOOK_SECONDS
        if self._growth is None:
            self._growth = Growth(partial(_seen, checkpoints))
        return self._growth.due(room=self.queue.is_room_for_more(self.spec, self.claim))


def _seen(checkpoints: Path) -> dict[str, tuple[float, ...]]:
    """Return inode, size and time of change of each file."""
    found: dict[str, tuple[float, ...]] = {}
    with suppress(OSError):  # a rank moves or deletes what is listed: the next look sees what is there then
        for entry in islice(files_of(checkpoints), _MOST_FILES):
            stat = entry.stat(follow_symlinks=False)
            found[entry.path] = stat.st_ino, stat.st_size, stat.st_mtime_ns
    return found
