"""Looks at one machine's GPUs and its queue, as a person asks who has what and who waits."""

from __future__ import annotations

import platform
import time
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from muster.backends.capacity import Cards, Gpus, HeldResources, Line, Part, QueuePlace, Queues, WaitingJob
from muster.backends.forecast import Amounts, Competition, Demand
from muster.backends.local.machine import GIB, Machine
from muster.backends.local.places import Places
from muster.backends.local.processes import ranks
from muster.backends.local.queue import JobQueue, Ticket
from muster.backends.local.room import PASSED_SECONDS, PREEMPTED, priority
from muster.backends.local.start import Starter
from muster.core.job import JobSpec
from muster.core.settings import Settings
from muster.core.status import JobStatus
from muster.volumes.protocols import LocalStore

NAME = "local"  # of the one queue that a machine has
GPU, MEMORY = "nvidia.com/gpu", "memory"


class LocalCapacity:
    """What this machine's jobs may run on; see :class:`~muster.backends.capacity.Capacity`.

    :param machine: what there is to claim; looked up where it is not given.
    """

    def __init__(self, settings: Settings, *, machine: Machine | None = None) -> None:
        self._settings = settings
        self._machine = machine or Machine.here()
        self._queue = JobQueue(Places(settings.home), self._machine)

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
        # Of one whose spec is gone only its ticket is left: the next admission deletes it.
        specs = {} if store is None else store.ledger.specs([each.job_id for each in tickets])
        waiting = tuple(
            _waiting(
                each,
                reasons.get(each.job_id, ""),
                QueuePlace(number=number, of=len(tickets)),
                specs.get(each.job_id),
            )
            for number, each in enumerate(tickets, start=1)
        )
        line = Line(
            name=NAME, waiting=len(tickets), running=sum(not claim.extra for claim in self._queue.claims())
        )
        return Queues(lines=(line,), waiting=waiting)

    def parts(self, job_id: str) -> tuple[Part, ...]:
        """Return a job's processes; without a rank where some have ended, since the others' ranks are then unknown."""
        store = self._store()
        if store is None:
            return ()
        pids = ranks(Places(self._settings.home).mark(job_id))
        staging, spec = store.staging(job_id), store.ledger.spec(job_id)
        whole = len(pids) == (spec if staging is None else staging.as_begun(spec)).world_size
        return tuple(
            Part(name=f"rank {number}" if whole else "a rank", process=f"pid {pid}")
            for number, pid in enumerate(pids)
        )

    def held(self, job_ids: Collection[str]) -> Mapping[str, tuple[HeldResources, ...]]:
        """Return which cards of this machine each of these jobs has."""
        return {
            claim.job_id: (HeldResources(node=platform.node(), gpus=len(claim.gpus), which=claim.gpus),)
            for claim in self._queue.claims()
            if claim.job_id in job_ids
        }

    def outlook(self, jobs: Sequence[JobSpec] = ()) -> Competition:
        """Return this machine's memory and cards, who holds them and who waits for them."""
        store, claims, tickets = self._store(), self._queue.claims(), self._queue.tickets()
        ids = list(dict.fromkeys([*(each.job_id for each in claims), *(each.job_id for each in tickets)]))
        specs = {} if store is None else store.ledger.specs(ids)
        statuses = {} if store is None else {each.job_id: each for each in store.ledger.statuses(ids)}
        names = {job_id: spec.name for job_id, spec in specs.items()}
        held = [
            Demand(
                name=names.get(claim.job_id, claim.job_id),
                job_id=claim.job_id,
                choices=(_amounts(claim.memory_gib, len(claim.gpus)),),
                line=NAME,
                priority=priority(claim.rank),
                started=_begun(statuses.get(claim.job_id)),
            )
            for claim in claims
        ]
        return Competition(
            pools={MEMORY: self._machine.memory_gib * GIB, GPU: float(len(self._machine.gpus))},
            running=tuple(each for each in held if not _gives_way(each)),
            waiting=(
                # What is preempted is forecast as if it waited: it has what those of a higher priority leave to it.
                *(each for each in held if _gives_way(each)),
                *(
                    _demand(ticket, names.get(ticket.job_id), job_id=ticket.job_id, since=ticket.submitted)
                    for ticket in tickets
                ),
            ),
            passed_seconds={NAME: PASSED_SECONDS},
            planned=tuple(_planned(job, self._machine) for job in jobs),
        )

    def _store(self) -> LocalStore | None:
        """Return the store; None where there is none, as looking makes nothing."""
        if not self._settings.store.is_dir():
            return None
        from muster.volumes.folder import FolderStore

        return FolderStore(self._settings.store)


def _gives_way(running: Demand) -> bool:
    return running.priority <= priority(PREEMPTED)


def _amounts(memory_gib: float, cards: int) -> Amounts:
    return {MEMORY: memory_gib * GIB} | ({GPU: float(cards)} if cards else {})


def _demand(ticket: Ticket, name: str | None = None, **more: Any) -> Demand:
    return Demand(
        name=name or ticket.job_id,
        choices=(_amounts(ticket.memory_gib, ticket.gpus),),
        line=NAME,
        priority=priority(ticket.rank),
        **more,
    )


def _planned(job: JobSpec, machine: Machine) -> Demand:
    """A job's memory, and its cards where the machine has as many: else it runs on CPUs."""
    ticket = Ticket.of(job, job_id=job.name, submitted=0.0, machine=machine)
    return _demand(ticket, gpus=ticket.gpus)


def _begun(status: JobStatus | None) -> float:
    """When a job that holds its claim began to run; one that prepares counts from now."""
    return time.time() if status is None or status.started is None else status.started


def _waiting(ticket: Ticket, reason: str, place: QueuePlace, spec: JobSpec | None) -> WaitingJob:
    return WaitingJob(
        name=ticket.job_id,
        job_id=ticket.job_id,
        title="" if spec is None else spec.name,
        queue=NAME if spec is None else spec.queue or NAME,  # as the page shows it; all stand in one line
        priority=priority(ticket.rank),
        since=ticket.submitted,
        why=reason.replace("waiting for", "waits for", 1),
        needs=MappingProxyType(dict(_amounts(ticket.memory_gib, ticket.gpus))),
        place=place,
    )
