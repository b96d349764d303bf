"""Who may run: a job waits as a ticket and runs under a claim, whole or not at all.

A ticket is a file and costs no process. A claim is a file too, and counts only while its lock is held:
the supervisor that was started with it inherits the lock, so that a crash gives everything back. Both
change under one lock, in :meth:`JobQueue.admit`, which is called at each submission, at the end of each
supervisor, and at each look at a job while jobs wait.

Order is priority, then submission. A job that does not fit lets smaller ones behind it pass for
:data:`PASSED_SECONDS`. From then on what is free is kept for it, as much as it needs, so that a big gang is
never starved by small ones; these run meanwhile in what is left.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from muster.backends.local.machine import Machine, free_port
from muster.backends.local.places import Places
from muster.core.errors import SpecError
from muster.core.job import JobSpec
from muster.core.locks import is_locked, locked, locked_if_free
from muster.core.wire import dumps, loads
from muster.volumes.durability import write_whole

PRIORITIES = {"high": 0, "normal": 1, "low": 2}

PASSED_SECONDS = 300.0

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
    def of(cls, job: JobSpec, *, job_id: str, submitted: float, machine: Machine) -> Ticket:
        """Write down what `job` needs of this machine; no GPU where it must do with CPUs."""
        return cls(
            job_id=job_id,
            submitted=submitted,
            deadline=submitted + job.queue_timeout_seconds,
            memory_gib=memory_needed(job),
            gpus=gpus_needed(job) if gpus_needed(job) <= len(machine.gpus) else 0,
            rank=PRIORITIES.get(job.priority or "normal", PRIORITIES["normal"]),
            ports=max(1, job.world_size) if job.launcher.listens else 1,
        )


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a job that was started holds, until its lock is given back.

    :param port: rank 0's, and `more_ports` those of the ranks after it, where each listens on one.
    """

    job_id: str
    memory_gib: float
    gpus: tuple[str, ...]
    port: int
    more_ports: tuple[int, ...] = ()

    @property
    def ports(self) -> tuple[int, ...]:
        """All of them, by rank."""
        return (self.port, *self.more_ports)


@dataclass
class _Room:
    """What is left for the next in the queue.

    :param memory_gib: and `gpus`, what no job that runs holds; `total` is all that there is.
    :param kept: those before it for which what is free is kept.
    """

    memory_gib: float
    gpus: int
    total: Machine
    kept: list[Ticket] = field(default_factory=list)

    def lacks(self, ticket: Ticket) -> str:
        """Say what a job waits for, and for whom it is kept; empty if it fits."""
        if ticket.gpus and ticket.gpus > self.gpus - sum(each.gpus for each in self.kept):
            wanted = f"{ticket.gpus} GPU{'s' * (ticket.gpus > 1)}"
            free, total = f"{max(self.gpus, 0)}", f"{len(self.total.gpus)}"
            holders = [each for each in self.kept if each.gpus]
        elif ticket.memory_gib > self.memory_gib - sum(each.memory_gib for each in self.kept):
            wanted = f"{ticket.memory_gib:g} GiB of memory"
            free, total = f"{max(self.memory_gib, 0.0):.3g}", f"{self.total.memory_gib:.3g}"
            holders = self.kept
        else:
            return ""
        return f"{wanted}: {free} of {total} free{_kept_for(holders)}"

    def take(self, ticket: Ticket) -> None:
        """Take out what a job holds that was started."""
        self.memory_gib -= ticket.memory_gib
        self.gpus -= ticket.gpus

    def wait(self, ticket: Ticket, *, fits: bool) -> None:
        """Keep what is free for a job that waits: long enough, or for something else than room."""
        if fits or time.time() >= ticket.submitted + PASSED_SECONDS:
            self.kept.append(ticket)


def _kept_for(holders: list[Ticket]) -> str:
    if not holders:
        return ""
    more = f" and {len(holders) - 1} more" if len(holders) > 1 else ""
    return f", kept for {holders[0].job_id}{more}"


class JobQueue:
    """The tickets and claims of one MUSTER_HOME on one machine."""

    def __init__(self, places: Places, machine: Machine) -> None:
        self._places = places
        self._machine = machine

    def enter(self, ticket: Ticket) -> None:
        """Let a job wait, unless it waits or runs already."""
        self._places.tickets.mkdir(parents=True, exist_ok=True)
        with locked(self._places.admission_lock):
            if not self.holds(ticket.job_id):
                write_whole(self._ticket(ticket.job_id), dumps(ticket), durable=False)

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

    def leave(self, job_id: str, handle: int) -> None:
        """Give back the claim that this process holds by the lock `handle`."""
        with locked(self._places.admission_lock):
            self._claim(job_id).unlink(missing_ok=True)
        os.close(handle)

    def admit(
        self, start: Callable[[Claim, int], bool], *, overdue: Callable[[Ticket, str], None], wait: bool
    ) -> None:
        """Start every waiting job that has room, in order; each whole or not at all.

        :param start: starts the supervisor and hands it the claim's lock (an open file); False where
            this process cannot, for want of the job's secrets, and the job waits for one that can.
        :param overdue: ends a job that waited too long, with what it waited for.
        :param wait: whether to wait where another process is admitting.
        """
        if not self._anybody_waits():
            return
        if wait:
            with locked(self._places.admission_lock):
                self._admit(start, overdue)
            return
        with locked_if_free(self._places.admission_lock) as mine:
            if mine:
                self._admit(start, overdue)

    def reasons(self) -> dict[str, str]:
        """Say of every waiting job what it waits for."""
        room, found = self._room(), {}
        for before, ticket in enumerate(self.tickets()):
            lacking = room.lacks(ticket)
            found[ticket.job_id] = _waiting(lacking, before)
            room.wait(ticket, fits=not lacking)
        return found

    def claims(self) -> list[Claim]:
        """Return what the jobs hold that run."""
        found = []
        for path in self._places.claims.glob("*.json") if self._places.claims.is_dir() else ():
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

    def _admit(self, start: Callable[[Claim, int], bool], overdue: Callable[[Ticket, str], None]) -> None:
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
                room.wait(ticket, fits=not lacking)
                continue
            self._ticket(ticket.job_id).unlink()

    def _start(self, ticket: Ticket, start: Callable[[Claim, int], bool]) -> bool:
        live = self.claims()
        taken = {gpu for claim in live for gpu in claim.gpus}
        free = [gpu for gpu in self._machine.gpus if gpu not in taken]
        port, *more_ports = self._free_ports(ticket.ports, live)
        claim = Claim(
            job_id=ticket.job_id,
            memory_gib=ticket.memory_gib,
            gpus=tuple(free[: ticket.gpus]),
            port=port,
            more_ports=tuple(more_ports),
        )
        handle = self._write(claim)
        started = False
        try:
            started = start(claim, handle)
        finally:
            if not started:
                self._claim(ticket.job_id).unlink()
            os.close(handle)
        return started

    def _free_ports(self, count: int, live: Iterable[Claim]) -> list[int]:
        taken = {port for claim in live for port in claim.ports}
        found: list[int] = []
        for _ in range(count):
            found.append(free_port(taken.union(found)))
        return found

    def _room(self) -> _Room:
        live = self.claims()
        return _Room(
            memory_gib=self._machine.memory_gib - sum(claim.memory_gib for claim in live),
            gpus=len(self._machine.gpus) - sum(len(claim.gpus) for claim in live),
            total=self._machine,
        )

    def _anybody_waits(self) -> bool:
        try:
            with os.scandir(self._places.tickets) as entries:
                return any(entry.name.endswith(".json") for entry in entries)
        except FileNotFoundError:
            return False

    def _write(self, claim: Claim) -> int:
        """Lock a new file, then give it the claim's name: a claim's file is locked from its first moment."""
        self._places.claims.mkdir(parents=True, exist_ok=True)
        path = self._claim(claim.job_id)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        fcntl.flock(handle, fcntl.LOCK_EX)
        os.write(handle, dumps(claim).encode())
        temporary.replace(path)
        return handle

    def _ticket(self, job_id: str) -> Path:
        return self._places.tickets / f"{job_id}.json"

    def _claim(self, job_id: str) -> Path:
        return self._places.claims / f"{job_id}.json"


def memory_needed(job: JobSpec) -> float:
    """GiB that the whole gang may use at once."""
    return sum(role.replicas * role.resources.memory_gib for role in job.roles)


def gpus_needed(job: JobSpec) -> int:
    """Cards that the whole gang asks for."""
    return sum(role.replicas * role.resources.gpus for role in job.roles)


def _waiting(lacking: str, before: int) -> str:
    ahead = f"{before} job{'s' * (before > 1)} before it" if before else ""
    return "waiting for " + ("; ".join(part for part in (lacking, ahead) if part) or "its turn")
