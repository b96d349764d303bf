"""Looks at one machine's GPUs and its queue, as a person asks who has what and who waits."""

from __future__ import annotations

import platform
from types import MappingProxyType

from muster.backends.capacity import Cards, Gpus, Line, Part, Place, Queues, Waiting
from muster.backends.local.machine import GIB, Machine
from muster.backends.local.places import Places
from muster.backends.local.processes import ranks
from muster.backends.local.queue import PRIORITIES, Queue, Ticket
from muster.backends.local.start import Starter
from muster.core.errors import Corrupt, NotFound
from muster.core.job import JobSpec
from muster.core.settings import Settings
from muster.volumes.protocols import Store

NAME = "local"  # of the one queue that a machine has
GPU, MEMORY = "nvidia.com/gpu", "memory"


class LocalCapacity:
    """What this machine's jobs may run on; see :class:`~muster.backends.capacity.Capacity`.

    :param machine: what there is to claim; looked up where it is not given.
    """

    def __init__(self, settings: Settings, *, machine: Machine | None = None) -> None:
        self._settings = settings
        self._machine = machine or Machine.here()
        self._queue = Queue(Places(settings.home), self._machine)

    def gpus(self) -> Gpus:
        """Return how many cards jobs of this MUSTER_HOME hold: of this machine's, and they are of one class."""
        total, used = len(self._machine.gpus), sum(len(claim.gpus) for claim in self._queue.claims())
        if not total:
            return Gpus(by_class=(), by_node=())
        one = Cards(name=platform.node(), total=total, used=used)
        return Gpus(by_class=(Cards(name=one.gpu_class, total=total, used=used),), by_node=(one,))

    def queues(self) -> Queues:
        """Return what waits here now, and admit the jobs that have room: each look admits."""
        store = self._store()
        if store is not None:
            Starter(settings=self._settings, machine=self._machine, ledger=store.ledger).admit(wait=False)
        reasons, tickets = self._queue.reasons(), self._queue.tickets()
        waiting = tuple(
            _waiting(ticket, reasons.get(ticket.job_id, ""), Place(number=number, of=len(tickets)), store)
            for number, ticket in enumerate(tickets, start=1)
        )
        line = Line(name=NAME, waiting=len(tickets), running=len(self._queue.claims()))
        return Queues(lines=(line,), waiting=waiting)

    def parts(self, job_id: str) -> tuple[Part, ...]:
        """Return a job's processes; without a rank where some have ended, since the others' ranks are then unknown."""
        store = self._store()
        if store is None:
            return ()
        pids = ranks(Places(self._settings.home).mark(job_id))
        whole = len(pids) == store.ledger.spec(job_id).world_size
        return tuple(
            Part(name=f"rank {number}" if whole else "a rank", process=f"pid {pid}")
            for number, pid in enumerate(pids)
        )

    def _store(self) -> Store | None:
        """Return the store; None where there is none, as looking makes nothing."""
        if not self._settings.store.is_dir():
            return None
        from muster.volumes.folder import FolderStore

        return FolderStore(self._settings.store)


def _waiting(ticket: Ticket, reason: str, place: Place, store: Store | None) -> Waiting:
    spec = _spec(ticket.job_id, store)
    needs = {MEMORY: ticket.memory_gib * GIB} | ({GPU: float(ticket.gpus)} if ticket.gpus else {})
    return Waiting(
        name=ticket.job_id,
        job_id=ticket.job_id,
        title="" if spec is None else spec.name,
        queue=NAME if spec is None else spec.queue or NAME,  # as the page shows it; all stand in one line
        priority=PRIORITIES["normal"] - ticket.rank,
        since=ticket.submitted,
        why=reason.replace("waiting for", "waits for", 1),
        needs=MappingProxyType(needs),
        place=place,
    )


def _spec(job_id: str, store: Store | None) -> JobSpec | None:
    if store is None:
        return None
    try:
        return store.ledger.spec(job_id)
    except (NotFound, Corrupt):  # only its ticket is left: the next admission deletes it
        return None
