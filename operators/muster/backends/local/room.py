"""The room for jobs that wait on one machine: what is free, for whom it is kept, and which jobs give theirs back.

The queue (:mod:`muster.backends.local.queue`) makes a :class:`FreeResources` for each admission and goes through its
tickets in their order. Nothing is written here.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from muster.backends.local.machine import Machine

if TYPE_CHECKING:
    from muster.backends.local.queue import Claim, Ticket

PRIORITIES = {"high": 0, "normal": 1, "low": 2}

PASSED_SECONDS = 300.0


def priority(rank: int) -> int:
    """Return how forecasts and queues count a rank: the higher, the sooner; normal is 0."""
    return PRIORITIES["normal"] - rank


# Only these are preempted, and by every other: who asks for no priority never agreed to be interrupted.
PREEMPTED = PRIORITIES["low"]

# Sums of GiB are not exact: room that is short by less than this is enough.
_NOISE_GIB = 1e-6


@dataclass
class FreeResources:
    """What is left for the next in the queue.

    :param memory_gib: and `gpus`, what no job that runs holds; `total` is all that there is.
    :param coming: claims whose jobs were asked to give them back, and do so now.
    :param preemptible: claims whose jobs may be asked to, the youngest first.
    :param kept: the tickets before it for which what is free is kept.
    """

    memory_gib: float
    gpus: int
    total: Machine
    coming: list[Claim] = field(default_factory=list)
    preemptible: list[Claim] = field(default_factory=list)
    kept: list[Ticket] = field(default_factory=list)

    def lacks(self, ticket: Ticket) -> str:
        """Say what a job waits for, and for whom it is kept; empty if it fits."""
        if self._lacks_gpus(ticket, ()):
            free, total = f"{max(self.gpus, 0)}", f"{len(self.total.gpus)}"
            holders = [each for each in self.kept if each.gpus]
        elif self._lacks_memory(ticket, ()):
            free, total = f"{max(self.memory_gib, 0.0):.3g}", f"{self.total.memory_gib:.3g}"
            holders = self.kept
        else:
            return ""
        return f"{self.wants(ticket)}: {free} of {total} free{_kept_for(holders)}"

    def wants(self, ticket: Ticket) -> str:
        """Say what a job that does not fit needs: its cards if they are short, else its memory."""
        if self._lacks_gpus(ticket, ()):
            return f"{ticket.gpus} GPU{'s' * (ticket.gpus > 1)}"
        return f"{ticket.memory_gib:g} GiB of memory"

    def take(self, ticket: Ticket) -> None:
        """Take out what a job holds that was started."""
        self.memory_gib -= ticket.memory_gib
        self.gpus -= ticket.gpus

    def wait(self, ticket: Ticket, *, fits: bool) -> None:
        """Keep what is free for a job that waits: long enough, or for something else than room."""
        if fits or time.time() >= ticket.submitted + PASSED_SECONDS:
            self.kept.append(ticket)

    def make_way(self, ticket: Ticket, *, may_ask: bool = True) -> list[Claim] | None:
        """Choose which jobs give their room back to one that does not fit; none where enough is coming already.

        As Kueue does it: the youngest are taken until it fits, since they lose the least work, and those without which
        it fits as well are spared, the oldest first. From now on room is kept for this job, so none that comes
        after it starts in what is given back.

        :param may_ask: whether more jobs may be asked than those that were.
        :returns: None where it would not fit even then, and nothing was changed.
        """
        if ticket.rank >= PREEMPTED:
            return None
        chosen: list[Claim] = []
        for claim in self.preemptible if may_ask else ():
            if self._fits(ticket, chosen):
                break
            chosen.append(claim)
        if not self._fits(ticket, chosen):
            return None
        for claim in reversed(chosen):
            rest = [each for each in chosen if each is not claim]
            chosen = rest if self._fits(ticket, rest) else chosen
        self.preemptible = [each for each in self.preemptible if each not in chosen]
        self.coming += chosen
        self.kept.append(ticket)
        return chosen

    def _fits(self, ticket: Ticket, given_back: Sequence[Claim]) -> bool:
        """Whether a job fits once these claims, and those that are coming, are given back."""
        claims = [*self.coming, *given_back]
        return not (self._lacks_gpus(ticket, claims) or self._lacks_memory(ticket, claims))

    def _lacks_gpus(self, ticket: Ticket, given_back: Iterable[Claim]) -> bool:
        free = self.gpus + sum(len(each.gpus) for each in given_back) - sum(each.gpus for each in self.kept)
        return bool(ticket.gpus) and ticket.gpus > free

    def _lacks_memory(self, ticket: Ticket, given_back: Iterable[Claim]) -> bool:
        given = sum(each.memory_gib for each in given_back)
        free = self.memory_gib + given - sum(each.memory_gib for each in self.kept)
        return ticket.memory_gib > free + _NOISE_GIB


def _kept_for(holders: list[Ticket]) -> str:
    if not holders:
        return ""
    more = f" and {len(holders) - 1} more" if len(holders) > 1 else ""
    return f", kept for {holders[0].job_id}{more}"
