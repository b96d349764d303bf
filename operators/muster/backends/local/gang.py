"""One start of a whole gang: what its replicas are told, all of them together until the last has ended, and which was at fault."""

from __future__ import annotations

import errno
import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from muster.backends.local.limits import Cgroup, Overrun, Polled, limit_memory
from muster.backends.local.places import JobFolder
from muster.backends.local.queue import Claim
from muster.backends.local.spawn import Worker
from muster.core.advice import usual
from muster.core.job import JobSpec
from muster.core.replica import LOOPBACK, Replica, Report, read_report
from muster.core.room import Room, make_room
from muster.core.verdict import CAUSES, SEEN_LATE_SECONDS, Cause, ExitCode, Verdict, first_of
from muster.core.wire import dumps
from muster.volumes.base import Staging
from muster.volumes.protocols import LocalStore

_TICK_SECONDS = 0.1
_LOOK_SECONDS = 0.2  # at memory; where no cgroup keeps the limit this reads /proc
# When one replica fails, its peers often fail of that a moment later: they get this long to say so,
# because the one that failed first is at fault.
_SETTLE_SECONDS = 0.5
# A worker gives its ranks the job's own grace and then needs a moment itself.
MARGIN_SECONDS = 2.0
_READ_BYTES = 64 * 1024
# A worker's lines are shorter: 64 KiB, thrice as much where all of it is no text. What is longer is not a
# worker's and is cut, and what follows the cut would pass for a line of muster's own.
_LONGEST_BYTES = 256 * 1024
_READS = 16  # then the other replicas have their turn


def replicas_of(
    job: JobSpec,
    *,
    staging: Staging,
    store: LocalStore,
    claim: Claim,
    cards: Sequence[str],
    folder: JobFolder,
    scratch: Path,
) -> list[Replica]:
    """Make the folders of every replica of this attempt and return what each is told."""
    inputs = {
        name: tuple(str(store.path(pinned.address)) for pinned in job.inputs[name].versions)
        for name in job.mounted
    }
    code = str(store.code(job.code)) if job.code else None
    left = iter(cards)
    made = [
        Replica(
            job_id=staging.job_id,
            spec=job,
            attempt=staging.attempt,
            role=role.name,
            index=index,
            code=code,
            inputs=inputs,
            staging={name: str(staging.output(role.name, index, name)) for name in job.staged},
            checkpoints=str(staging.checkpoints),
            scratch=str(scratch / f"{role.name}-{index}"),
            sealed=str(staging.sealed(role.name, index)),
            report=str(folder.report(staging.attempt, role.name, index)),
            master_port=claim.port,
            peers=tuple(f"{LOOPBACK}:{port}" for port in claim.ports) if job.launcher.listens else (),
            gpus=tuple(islice(left, role.resources.gpus)),  # none is left where the gang runs on CPUs
        )
        for role in job.roles
        for index in range(role.replicas)
    ]
    for replica in made:
        for path in (*replica.staging.values(), replica.checkpoints, replica.scratch):
            Path(path).mkdir(parents=True, exist_ok=True)
        for path in (replica.sealed, replica.report):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
    return made


@dataclass
class Member:
    """One replica: what it is, its worker's process and what is known of its end."""

    replica: Replica
    worker: Worker
    limit: Cgroup | Polled
    watch: int = -1
    partial: bytes = b""
    silent: bool = False
    last_line: str = ""
    code: int | None = None
    ended_at: float = 0.0
    stopped: bool = False
    overrun: Overrun | None = None

    @property
    def name(self) -> str:
        """Its role and index, as its files have it."""
        return f"{self.replica.role}-{self.replica.index}"

    @property
    def running(self) -> bool:
        """Whether its worker has not ended yet."""
        return self.code is None

    def begin(self) -> None:
        """Put the worker under its limit and tell it what it is; it starts its ranks then."""
        self.watch = os.pidfd_open(self.worker.pid)
        self.limit.enter(self.worker.pid)
        with suppress(BrokenPipeError), os.fdopen(self.worker.tell, "wb") as pipe:  # its end is seen later
            pipe.write(dumps(self.replica).encode())

    def lines(self) -> bytes:
        """Return the whole lines that have come; at the worker's end also what is left of one."""
        chunks = [self.partial]
        with suppress(BlockingIOError):
            for _ in range(_READS):
                chunks.append(os.read(self.worker.output, _READ_BYTES))
                self.silent = not chunks[-1]
        whole, newline, self.partial = b"".join(chunks).rpartition(b"\n")
        if self.partial and (not self.running or len(self.partial) > _LONGEST_BYTES):
            whole, newline, self.partial = whole + newline + self.partial, b"\n", b""
        if whole:
            self.last_line = whole.rpartition(b"\n")[2].decode("utf-8", "replace")
        return whole + newline

    def reap(self) -> None:
        """Take the worker's exit code."""
        _, status = os.waitpid(self.worker.pid, 0)
        self.code = os.waitstatus_to_exitcode(status)
        self.ended_at = time.time()

    def signal(self, number: int) -> None:
        """Send a signal to the worker if it still runs."""
        if self.running:
            self.stopped = True
            signal.pidfd_send_signal(self.watch, number)

    def close(self) -> None:
        """Give back what the kernel holds for it, once nothing of it runs any more."""
        os.close(self.watch)
        os.close(self.worker.output)
        self.limit.close()


@dataclass
class Gang:
    """All replicas of one attempt. :meth:`run` it once.

    :param workers: the worker of each of `replicas`, started and waiting to be told what it is.
    :param mark: of the job and its home.
    :param log: takes whole lines.
    :param turn: is called several times a second, whether or not a line came.
    :param asked_to_end: whether the job is to end, or to give its room back. The verdict's cause is then `cancelled`.
    """

    replicas: Sequence[Replica]
    workers: Sequence[Worker]
    mark: str
    log: Callable[[bytes], None]
    turn: Callable[[], None]
    asked_to_end: Callable[[], bool]
    deadline: float
    members: list[Member] = field(default_factory=list)
    _poll: select.poll = field(default_factory=select.poll)
    _look_at: float = 0.0
    _kill_at: float | None = None
    _stop_at: float | None = None
    _ended: Verdict | None = None

    def run(self) -> Verdict | None:
        """Start every replica, pass on their lines, and return when all of them have ended.

        :returns: why the gang failed; None where every replica sealed.
        """
        for replica, worker in zip(self.replicas, self.workers, strict=True):
            member = Member(replica, worker, limit_memory(replica, mark=self.mark))
            self.members.append(member)
            member.begin()
            self._poll.register(worker.output, select.POLLIN)
            self._poll.register(member.watch, select.POLLIN)
        while any(member.running for member in self.members):
            self._step()
        return self._ended or first_fault(self.members)

    def close(self) -> None:
        """Give everything back, once nothing runs any more."""
        for member in self.members:
            member.close()

    def _step(self) -> None:
        ready = {handle for handle, _ in self._poll.poll(_TICK_SECONDS * 1000)}
        lines = []
        for member in self.members:
            if member.running and member.watch in ready:
                member.reap()
                member.overrun = member.overrun or (
                    member.limit.overrun(member.worker.pid) if member.code else None
                )
                self._poll.unregister(member.watch)
            if member.worker.output in ready or member.watch in ready:
                lines.append(member.lines())
            if member.worker.output in ready and (member.silent or not member.running):
                self._poll.unregister(member.worker.output)  # else its end would wake us again and again
        if any(lines):
            self.log(b"".join(lines))
        self.turn()
        if any(member.running for member in self.members):
            self._mind(time.monotonic())

    def _mind(self, now: float) -> None:
        """See to memory, failures, timeouts and cancels, and end the gang if one of them says so."""
        spec = self.replicas[0].spec
        self._look_at_memory(now)
        if self._ended is None and self.asked_to_end():
            self._end(Cause.CANCELLED, "cancelled while it ran", "run it again if that was not meant", now)
        elif self._ended is None and now > self.deadline:
            ran = f"it ran longer than its run_timeout of {spec.run_timeout_seconds:g} s"
            self._end(Cause.RUN_TIMEOUT, ran, "raise the timeout, or find what takes so long in its log", now)
        if self._stop_at is None and any(member.code or member.overrun for member in self.members):
            self._stop_at = now + _SETTLE_SECONDS
        if self._stop_at is not None and self._kill_at is None and now >= self._stop_at:
            self._stop(now + self.replicas[0].ending_seconds())
        if self._kill_at is not None and now >= self._kill_at:
            for member in self.members:
                member.signal(signal.SIGKILL)

    def _look_at_memory(self, now: float) -> None:
        if now < self._look_at:
            return
        self._look_at = now + _LOOK_SECONDS
        for member in self.members:
            if member.running and member.overrun is None:
                member.overrun = member.limit.overrun(member.worker.pid)

    def _end(self, cause: Cause, message: str, advice: str, now: float) -> None:
        self._ended = Verdict(cause=cause, message=message, advice=advice)
        self._stop(now + self.replicas[0].spec.grace_seconds + MARGIN_SECONDS)

    def _stop(self, kill_at: float) -> None:
        self._kill_at = kill_at
        for member in self.members:
            member.signal(signal.SIGTERM)


def first_fault(members: Sequence[Member]) -> Verdict | None:
    """Return why the gang failed, or None where every replica sealed.

    Memory that we saw outgrow its limit explains all else; otherwise it is what happened first.
    """
    overruns = [member for member in members if member.overrun is not None]
    if overruns:
        first = min(overruns, key=lambda member: member.ended_at)
        return _out_of_memory(first, read_report(first.replica.report))
    faults = [fault for member in members if (fault := _fault(member)) is not None]
    return first_of([verdict for _, verdict in sorted(faults, key=lambda fault: fault[0])])


def _fault(member: Member) -> tuple[float, Verdict] | None:
    """Return what went wrong in one replica and when; nothing did where it sealed, or where we stopped it."""
    report = read_report(member.replica.report)
    if member.code == ExitCode.SEALED:
        return None
    if member.code == ExitCode.STOPPED:
        return None if member.stopped else (member.ended_at, _lost(member, "was stopped from outside muster"))
    if report is not None and report.verdict is not None:
        return report.at, report.verdict
    if member.stopped:
        return None
    if member.code is not None and member.code > 0:
        return member.ended_at, _unreported(member)
    how = f"was killed by signal {-(member.code or 0)}"
    return member.ended_at - SEEN_LATE_SECONDS, _lost(member, how)


def _out_of_memory(member: Member, report: Report | None) -> Verdict:
    overrun = member.overrun
    assert overrun is not None
    said = report.verdict.rank if report and report.verdict else None
    known = overrun.rank if overrun.rank is not None else said
    message = f"replica {member.name} used {overrun.used_gib:.2f} GiB, its limit is {overrun.limit_gib:g} GiB"
    return usual(Cause.OUT_OF_MEMORY, message, rank=member.replica.first_rank if known is None else known)


def _lost(member: Member, how: str) -> Verdict:
    message = f"the worker of replica {member.name} {how}"
    return usual(Cause.RANK_LOST, message, rank=member.replica.first_rank)


def _unreported(member: Member) -> Verdict:
    """The exit code is a contract and names the cause, where a full disk kept the report from us."""
    cause = CAUSES.get(member.code or 0, Cause.BACKEND_ERROR)
    said = f": {member.last_line}" if member.last_line else ""
    if os.strerror(errno.ENOSPC) in said or os.strerror(errno.EDQUOT) in said:
        checkpoints = member.replica.checkpoints
        message = f"replica {member.name}{said}"
        with suppress(OSError):  # a disk that fails is told by what the worker said
            message += f": {Room.of(checkpoints)}"
        return Verdict(cause=Cause.DISK_FULL, message=message, advice=make_room(checkpoints))
    return Verdict(
        cause=cause,
        message=f"the worker of replica {member.name} ended with exit code {member.code} and no report{said}",
        advice="see its last lines in the log",
    )
