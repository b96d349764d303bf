"""Who may run: a job waits as a ticket and runs under a claim, whole or not at all.

A ticket is a file and costs no process. A claim is a file too, and counts only while its lock is held:
the supervisor that was started with it inherits the lock, so that a crash gives everything back. Both
change under one lock, in :meth:`JobQueue.admit`, which is called at each submission, at the end of each
supervisor, and at each look at a job while jobs wait.

Order is priority, then submission. A job that does not fit lets smaller ones behind it pass for
:data:`~muster.backends.local.room.PASSED_SECONDS`. From then on what is free is kept for it, as much as it needs, so
that a big gang is never starved by small ones; these run meanwhile in what is left. Jobs of priority low give their
room back to one that would fit then: each is asked by a file in its folder, and its supervisor lets it wait again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from muster.backends.local.machine import Machine, free_port
from muster.backends.local.places import Places
from muster.backends.local.room import PREEMPTED, PRIORITIES, FreeResources
from muster.core.errors import SpecError
from muster.core.job import NORMAL, JobSpec
from muster.core.locks import is_locked, locked, locked_if_free, take
from muster.core.wire import dumps, loads
from muster.volumes.durability import write_whole

_SECRETS = "a process that has its secrets"


@dataclass(frozen=True, kw_only=True)
class Ticket:
    """A job that waits, with what it needs before it can start.

    :param rank: of its priority, lowest first. Times are seconds since the epoch.
    :param ports: how many ports its gang listens on.
    """

    job_id: str
    submitted: float
    deadline: float
    memory_gib: float
    gpus: int
    rank: int = 1
    ports: int = 1

    @classmethod
    def of(
        cls, job: JobSpec, *, job_id: str, submitted: float, machine: Machine, since: float | None = None
    ) -> Ticket:
        """Write down what `job` needs of this machine; no GPU where it must do with CPUs.

        :param since: when its wait began, if that was not with its submission.
        """
        return cls(
            job_id=job_id,
            submitted=submitted,
            deadline=(submitted if since is None else since) + job.queue_timeout_seconds,
            memory_gib=memory_needed(job),
            gpus=gpus_needed(job) if gpus_needed(job) <= len(machine.gpus) else 0,
            rank=PRIORITIES.get(job.priority or NORMAL, PRIORITIES[NORMAL]),
            ports=max(1, job.world_size) if job.launcher.listens else 1,
        )


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a job that was started holds, until its lock is given back.

    :param port: rank 0's, and `more_ports` those of the ranks after it, where each listens on one.
    :param rank: of its job's priority, as in its ticket.
    :param extra: its number, from 1, where it is for one replica that an elastic gang has beyond its least number.
    """

    job_id: str
    memory_gib: float
    gpus: tuple[str, ...]
    port: int
    more_ports: tuple[int, ...] = ()
    rank: int = 1
    extra: int = 0

    @property
    def ports(self) -> tuple[int, ...]:
        """All of them, by rank."""
        return (self.port, *self.more_ports)


class JobQueue:
    """The tickets and claims of one MUSTER_HOME on one machine."""

    def __init__(self, places: Places, machine: Machine) -> None:
        self._places = places
        self._machine = machine

    def enter(self, ticket: Ticket) -> None:
        """Let a job wait, unless it waits or runs already."""
        with locked(self._places.admission_lock):
            if not self.holds(ticket.job_id) and not self._is_entered(ticket.job_id):
                self._enter(ticket)

    def wait_again(self, ticket: Ticket, handle: int, *, unless: Callable[[], bool]) -> bool:
        """Give back the claim that this process holds by the lock `handle`, and let its job wait, in one step.

        :param unless: says under the lock whether the job ends after all; nothing is done then.
        :returns: whether it waits.
        """
        with locked(self._places.admission_lock):
            if unless():
                return False
            self._enter(ticket)  # first, so that a kill in between leaves it in the queue
            self._claim(ticket.job_id).unlink(missing_ok=True)
        os.close(handle)
        return True

    def waits(self, job_id: str) -> bool:
        """Whether a job has a ticket."""
        return self._ticket(job_id).exists()

    def holds(self, job_id: str) -> bool:
        """Whether a job has a claim that counts: its supervisor lives."""
        return is_locked(self._claim(job_id))

    def left(self, job_id: str) -> bool:
        """Whether a claim of the job is there that no longer counts."""
        return self._claim(job_id).exists() and not self.holds(job_id)

    def withdraw(self, job_id: str, then: Callable[[], None]) -> bool:
        """Take a job that still waits out of the queue, and do `then` before it can be entered again."""
        with locked(self._places.admission_lock):
            if not self.waits(job_id) or self.holds(job_id):
                return False
            then()
            self._ticket(job_id).unlink()
            return True

    @contextmanager
    def seize(self, job_id: str) -> Iterator[bool]:
        """Hold the claim of a job whose supervisor was lost, at no cost, to bring it to its end here."""
        with locked(self._places.admission_lock):
            free = not self.waits(job_id) and not self.holds(job_id)
            handle = self._write(Claim(job_id=job_id, memory_gib=0, gpus=(), port=0)) if free else None
        try:
            yield free
        finally:
            if handle is not None:
                self.leave(job_id, handle)

    def leave(self, job_id: str, handle: int, *, extra: int = 0) -> None:
        """Give back the claim that this process holds by the lock `handle`. :param extra: as in the claim."""
        with locked(self._places.admission_lock):
            self._claim(job_id, extra).unlink(missing_ok=True)
            if not extra:  # those that a supervisor left that was killed
                for path in self._places.claims.glob(f"{job_id}+*.json"):
                    path.unlink(missing_ok=True)
        os.close(handle)

    def grow(self, job: JobSpec, claim: Claim, numbers: Iterable[int]) -> list[tuple[Claim, int]]:
        """Claim room for more replicas of an elastic gang that runs, each with its lock, as far as there is some.

        What a job that waits needs is kept for it, also where it does not fit yet.

        :param claim: the gang's own.
        :param numbers: of the claims.
        """
        with locked(self._places.admission_lock):
            room, one, taken = self._room_beside_all(), _one_more(job, claim), []
            for number in numbers:
                if room.lacks(one):
                    break
                room.take(one)
                more = Claim(
                    job_id=claim.job_id,
                    memory_gib=one.memory_gib,
                    gpus=tuple(self._free_cards(self.claims())[: one.gpus]),
                    port=0,
                    rank=one.rank,
                    extra=number,
                )
                taken.append((more, self._write(more)))
            return taken

    def is_room_for_more(self, job: JobSpec, claim: Claim) -> bool:
        """Whether :meth:`grow` would claim room for a replica now."""
        return not self._room_beside_all().lacks(_one_more(job, claim))

    def admit(
        self,
        start: Callable[[Claim, int], bool],
        *,
        overdue: Callable[[Ticket, str], None],
        wait: bool,
        able: Callable[[str], bool] = lambda _job_id: True,
    ) -> None:
        """Start every waiting job that has room, in order, each whole or not at all; preempt for those that have none.

        :param start: starts the supervisor and hands it the claim's lock (an open file); False where
            this process cannot, for want of the job's secrets, and the job waits for one that can.
        :param overdue: ends a job that waited too long, with what it waited for.
        :param wait: whether to wait where another process is admitting.
        :param able: whether this process could start a job: no other job is interrupted for one that it cannot start.
        """
        if not any(self._places.tickets.glob("*.json")):
            return
        if wait:
            with locked(self._places.admission_lock):
                self._admit(start, overdue, able)
            return
        with locked_if_free(self._places.admission_lock) as mine:
            if mine:
                self._admit(start, overdue, able)

    def reasons(self) -> dict[str, str]:
        """Say of every waiting job what it waits for."""
        room, found = self._room(), {}
        for before, ticket in enumerate(self.tickets()):
            lacking = room.lacks(ticket)
            if lacking and room.make_way(ticket) is not None:
                lacking += "; jobs of low priority give theirs back"
            else:
                room.wait(ticket, fits=not lacking)
            found[ticket.job_id] = _waiting(lacking, before)
        return found

    def claims(self) -> list[Claim]:
        """Return what the jobs hold that run."""
        found = []
        for path in self._places.claims.glob("*.json"):
            with suppress(FileNotFoundError):  # it ended since the folder was listed
                if is_locked(path):
                    found.append(loads(Claim, path.read_bytes()))
        return found

    def tickets(self) -> list[Ticket]:
        """Return the jobs that wait, the next to start first."""
        found = []
        for path in self._places.tickets.glob("*.json"):
            try:
                found.append(loads(Ticket, path.read_bytes()))
            except FileNotFoundError:
                continue  # started since the folder was listed
            except SpecError:  # the power went while it was written: its job waits to be submitted again
                path.unlink(missing_ok=True)
        return sorted(found, key=lambda ticket: (ticket.rank, ticket.submitted, ticket.job_id))

    def _admit(
        self,
        start: Callable[[Claim, int], bool],
        overdue: Callable[[Ticket, str], None],
        able: Callable[[str], bool],
    ) -> None:
        room = self._room()
        for before, ticket in enumerate(self.tickets()):
            if self.holds(ticket.job_id):  # the process that started it died before it deleted the ticket
                self._ticket(ticket.job_id).unlink()
                continue
            lacking = room.lacks(ticket)
            if not lacking and self._start(ticket, start):
                room.take(ticket)
            elif time.time() > ticket.deadline:
                overdue(ticket, _waiting(lacking or _SECRETS, before))
            else:
                if not (lacking and self._preempt_for(ticket, room, may_ask=able(ticket.job_id))):
                    room.wait(ticket, fits=not lacking)
                continue
            self._ticket(ticket.job_id).unlink()

    def _preempt_for(self, ticket: Ticket, room: FreeResources, *, may_ask: bool) -> bool:
        """Ask jobs of low priority for their room, if a job fits then; whether it does."""
        wanted = room.wants(ticket)
        chosen = room.make_way(ticket, may_ask=may_ask)
        for claim in chosen or ():
            whom = f"{ticket.job_id} waits for {wanted}"
            self._places.job(claim.job_id).ask_to_give_back(whom, extra=claim.extra)
        return chosen is not None

    def _start(self, ticket: Ticket, start: Callable[[Claim, int], bool]) -> bool:
        live = self.claims()
        port, *more_ports = self._free_ports(ticket.ports, live)
        claim = Claim(
            job_id=ticket.job_id,
            memory_gib=ticket.memory_gib,
            gpus=tuple(self._free_cards(live)[: ticket.gpus]),
            port=port,
            more_ports=tuple(more_ports),
            rank=ticket.rank,
        )
        self._places.job(ticket.job_id).forget_giving_back()  # what it was asked for holding its claim before
        handle = self._write(claim)
        started = False
        try:
            started = start(claim, handle)
        finally:
            if not started:
                self._claim(ticket.job_id).unlink()
            os.close(handle)
        return started

    def _free_cards(self, live: Iterable[Claim]) -> list[str]:
        taken = {gpu for claim in live for gpu in claim.gpus}
        return [gpu for gpu in self._machine.gpus if gpu not in taken]

    def _free_ports(self, count: int, live: Iterable[Claim]) -> list[int]:
        taken = {port for claim in live for port in claim.ports}
        found: list[int] = []
        for _ in range(count):
            found.append(free_port(taken.union(found)))
        return found

    def _room_beside_all(self) -> FreeResources:
        """What no job holds, and none that waits needs."""
        room = self._room()
        for ticket in self.tickets():
            room.wait(ticket, fits=True)
        return room

    def _room(self) -> FreeResources:
        live = self.claims()
        low = [claim for claim in live if claim.rank >= PREEMPTED]
        # The replicas that a gang can do without first, then the youngest, which have the least to lose.
        low.sort(key=lambda claim: (claim.extra > 0, self.since(claim)), reverse=True)
        coming = [each for each in low if self._places.job(each.job_id).gives_back(each.extra).exists()]
        return FreeResources(
            memory_gib=self._machine.memory_gib - sum(claim.memory_gib for claim in live),
            gpus=len(self._machine.gpus) - sum(len(claim.gpus) for claim in live),
            total=self._machine,
            coming=coming,
            preemptible=[claim for claim in low if claim not in coming],
        )

    def since(self, claim: Claim) -> float:
        """When a claim began to count: its file is written once."""
        try:
            return self._claim(claim.job_id, claim.extra).stat().st_mtime
        except FileNotFoundError:  # it ended since the claims were read
            return 0.0

    def _is_entered(self, job_id: str) -> bool:
        """Whether a job has a ticket that can be read: one that a power cut emptied counts for none."""
        try:
            loads(Ticket, self._ticket(job_id).read_bytes())
        except (FileNotFoundError, SpecError):
            return False
        return True

    def _enter(self, ticket: Ticket) -> None:
        self._places.tickets.mkdir(parents=True, exist_ok=True)
        write_whole(self._ticket(ticket.job_id), dumps(ticket), durable=False)

    def _write(self, claim: Claim) -> int:
        """Lock a new file, then give it the claim's name: a claim's file is locked from its first moment."""
        self._places.claims.mkdir(parents=True, exist_ok=True)
        path = self._claim(claim.job_id, claim.extra)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        take(handle)
        os.write(handle, dumps(claim).encode())
        temporary.replace(path)
        return handle

    def _ticket(self, job_id: str) -> Path:
        return self._places.tickets / f"{job_id}.json"

    def _claim(self, job_id: str, extra: int = 0) -> Path:
        return self._places.claims / (f"{job_id}+{extra}.json" if extra else f"{job_id}.json")


def memory_needed(job: JobSpec) -> float:
    """GiB that the gang may use at once; those of its least number of replicas where it is elastic."""
    return sum(role.least * role.resources.memory_gib for role in job.roles)


def gpus_needed(job: JobSpec) -> int:
    """Cards that the gang asks for, with its least number of replicas where it is elastic."""
    return sum(role.least * role.resources.gpus for role in job.roles)


def _one_more(job: JobSpec, claim: Claim) -> Ticket:
    """What one more replica of an elastic gang needs; it waits behind all others, and gives way to them."""
    resources = job.roles[0].resources
    return Ticket(
        job_id=claim.job_id,
        submitted=0.0,
        deadline=0.0,
        memory_gib=resources.memory_gib,
        gpus=resources.gpus if claim.gpus else 0,  # the whole gang runs on CPUs, or on cards
        rank=PREEMPTED,
    )


def _waiting(lacking: str, before: int) -> str:
    ahead = f"{before} job{'s' * (before > 1)} before it" if before else ""
    return "waiting for " + ("; ".join(part for part in (lacking, ahead) if part) or "its turn")
