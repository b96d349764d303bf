"""One start of a whole gang: its workers' processes, their lines, and why they ended."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from muster.backends.local.limits import MemoryLimit, Overrun, limit_memory
from muster.backends.local.processes import JOB_VARIABLE, die_with
from muster.core.errors import SpecError
from muster.core.replica import Replica, Report
from muster.core.verdict import Cause, ExitCode, Verdict
from muster.core.wire import loads

LINE_BYTES = 64 * 1024
_TICK_SECONDS = 0.1
# When one replica fails, its peers often fail of that a moment later: they get this long to say so,
# because the one that failed first is at fault.
_SETTLE_SECONDS = 0.5
# What peers of a failed replica get to end after SIGTERM: they cannot finish, only clean up.
_PEERS_SECONDS = 3.0
# A worker gives its ranks the job's own grace and then needs a moment itself.
_MARGIN_SECONDS = 2.0


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How one start of the gang ended.

    :param verdict: why it failed; None where every replica sealed.
    :param traceback: of the rank at fault.
    """

    verdict: Verdict | None
    traceback: tuple[str, ...] = ()


@dataclass
class Member:
    """One replica: what it is, its worker's process and what is known of its end."""

    replica: Replica
    limit: MemoryLimit
    pid: int = 0
    watch: int = -1
    output: int = -1
    partial: bytes = b""
    code: int | None = None
    ended_at: float = 0.0
    stopped: bool = False
    overrun: Overrun | None = None

    @property
    def name(self) -> str:
        """Its role and index, as its lines and files have it."""
        return f"{self.replica.role}-{self.replica.index}"

    @property
    def running(self) -> bool:
        """Whether its worker has not ended yet."""
        return self.code is None

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start the worker; it dies with this process and lives under its memory limit."""
        parent = os.getpid()
        self.output, write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                self._become(command, environment, write, parent)
            except BaseException as error:  # the copy of the supervisor must never run on
                os.write(write, f"cannot start the worker {command[0]}: {error}\n".encode())
            finally:
                os._exit(127)
        os.close(write)
        os.set_blocking(self.output, False)
        self.watch = os.pidfd_open(self.pid)

    def _become(
        self, command: Sequence[str], environment: Mapping[str, str], output: int, parent: int
    ) -> None:
        os.setsid()
        die_with(parent)
        self.limit.enter()
        signal.set_wakeup_fd(-1)
        for changed in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM):
            signal.signal(changed, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.execve(command[0], list(command), dict(environment))  # noqa: S606 no shell is wanted

    def lines(self) -> bytes:
        """Return the whole lines that have come; at the worker's end also what is left of one."""
        chunks = [self.partial]
        try:
            while chunk := os.read(self.output, LINE_BYTES):
                chunks.append(chunk)
        except BlockingIOError:
            pass
        whole, newline, self.partial = b"".join(chunks).rpartition(b"\n")
        if self.partial and (not self.running or len(self.partial) > LINE_BYTES):
            whole, newline, self.partial = whole + newline + self.partial, b"\n", b""
        return whole + newline

    def reap(self) -> None:
        """Take the worker's exit code."""
        _, status = os.waitpid(self.pid, 0)
        self.code = os.waitstatus_to_exitcode(status)
        self.ended_at = time.time()

    def signal(self, number: int) -> None:
        """Send a signal to the worker if it still runs."""
        if self.running:
            self.stopped = True
            signal.pidfd_send_signal(self.watch, number)

    def report(self, path: Path) -> Report | None:
        """Return what the worker said of its end, or None if it could not."""
        try:
            return loads(Report, path.read_bytes())
        except (FileNotFoundError, SpecError):
            return None

    def close(self) -> None:
        """Give back what the kernel holds for it, once nothing of it runs any more."""
        for handle in (self.watch, self.output):
            if handle >= 0:
                os.close(handle)
        self.limit.close()


@dataclass
class Gang:
    """All replicas of one attempt. :meth:`run` it once.

    :param commands: how each replica's worker is started, in the order of `replicas`.
    :param log: takes whole lines.
    """

    replicas: Sequence[Replica]
    commands: Sequence[Sequence[str]]
    environments: Sequence[Mapping[str, str]]
    log: Callable[[bytes], None]
    cancelled: Callable[[], bool]
    deadline: float
    members: list[Member] = field(default_factory=list)
    _poll: select.poll = field(default_factory=select.poll)
    _kill_at: float | None = None
    _stop_at: float | None = None
    _ended: Verdict | None = None

    def run(self) -> Outcome:
        """Start every replica, pass on their lines, and return when all of them have ended."""
        for replica, command, environment in zip(
            self.replicas, self.commands, self.environments, strict=True
        ):
            name = f"muster-{replica.job_id}-{replica.attempt}-{replica.role}-{replica.index}"
            member = Member(replica, limit_memory(name, replica.job_role.resources.memory_gib))
            self.members.append(member)
            member.start(command, {**environment, JOB_VARIABLE: replica.job_id})
            self._poll.register(member.output, select.POLLIN)
            self._poll.register(member.watch, select.POLLIN)
        while any(member.running for member in self.members):
            self._step()
        return self._outcome()

    def left(self) -> list[int]:
        """Return what the replicas left running, as far as their limits know it."""
        return [pid for member in self.members for pid in member.limit.members()]

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
                member.overrun = member.overrun or (member.limit.overrun(member.pid) if member.code else None)
                self._poll.unregister(member.watch)
            if member.output in ready or member.watch in ready:
                lines.append(member.lines())
            if member.output in ready and not member.running:
                self._poll.unregister(member.output)
        if any(lines):
            self.log(b"".join(lines))
        self._mind(time.monotonic())

    def _mind(self, now: float) -> None:
        """See to memory, failures, timeouts and cancels, and end the gang if one of them says so."""
        spec = self.replicas[0].spec
        for member in self.members:
            if member.running and member.overrun is None:
                member.overrun = member.limit.overrun(member.pid)
        if self._ended is None and self.cancelled():
            self._end(Cause.CANCELLED, "cancelled while it ran", "run it again if that was not meant", now)
        elif self._ended is None and now > self.deadline:
            ran = f"it ran longer than its run_timeout_seconds of {spec.run_timeout_seconds:g}"
            self._end(Cause.RUN_TIMEOUT, ran, "raise the timeout, or find what takes so long in its log", now)
        if self._stop_at is None and any(member.code or member.overrun for member in self.members):
            self._stop_at = now + _SETTLE_SECONDS
        if self._stop_at is not None and self._kill_at is None and now >= self._stop_at:
            self._stop(now + min(spec.grace_seconds, _PEERS_SECONDS))
        if self._kill_at is not None and now >= self._kill_at:
            for member in self.members:
                member.signal(signal.SIGKILL)

    def _end(self, cause: Cause, message: str, advice: str, now: float) -> None:
        self._ended = Verdict(cause=cause, message=message, advice=advice)
        self._stop(now + self.replicas[0].spec.grace_seconds + _MARGIN_SECONDS)

    def _stop(self, kill_at: float) -> None:
        self._kill_at = kill_at
        for member in self.members:
            member.signal(signal.SIGTERM)

    def _outcome(self) -> Outcome:
        if self._ended is not None:
            return Outcome(verdict=self._ended)
        faults = [fault for member in self.members if (fault := _fault(member)) is not None]
        return min(faults, key=lambda fault: fault[0])[1] if faults else Outcome(verdict=None)


def _fault(member: Member) -> tuple[tuple[bool, float], Outcome] | None:
    """Return what went wrong in one replica, with what sorts the gang's first fault to the front.

    Memory that we saw outgrow its limit comes first: all else follows from it.
    """
    report = member.report(Path(member.replica.report))
    if member.code == ExitCode.SEALED and member.overrun is None:
        return None
    if member.overrun is not None:
        rank = report.verdict.rank if report and report.verdict else None
        return (False, report.at if report else member.ended_at), Outcome(
            verdict=_out_of_memory(member, member.overrun, rank)
        )
    if member.code == ExitCode.STOPPED and not member.stopped:
        return (True, member.ended_at), Outcome(verdict=_lost(member, "was told to stop by somebody else"))
    if member.code != ExitCode.STOPPED and report is not None and report.verdict is not None:
        return (True, report.at), Outcome(verdict=report.verdict, traceback=report.traceback)
    if member.stopped:
        return None
    if member.code is not None and member.code > 0:
        return (True, member.ended_at), Outcome(verdict=_broken(member))
    # It was seen a moment after it happened; a peer's complaint of the loss may carry an earlier time.
    return (True, member.ended_at - _SETTLE_SECONDS), Outcome(
        verdict=_lost(member, f"was killed by signal {-(member.code or 0)}")
    )


def _out_of_memory(member: Member, overrun: Overrun, rank: int | None) -> Verdict:
    known = overrun.rank if overrun.rank is not None else rank
    return Verdict(
        cause=Cause.OUT_OF_MEMORY,
        rank=member.replica.first_rank if known is None else known,
        message=f"replica {member.name} used {overrun.used_gib:.2f} GiB, its limit is {overrun.limit_gib:g} GiB",
        advice="raise memory_gib in its resources, or hold less at once (smaller batches, fewer ranks)",
    )


def _lost(member: Member, how: str) -> Verdict:
    return Verdict(
        cause=Cause.RANK_LOST,
        rank=member.replica.first_rank,
        message=f"the worker of replica {member.name} {how}",
        advice="see the last lines of the log; if the machine ran out of memory, give the job less to hold",
    )


def _broken(member: Member) -> Verdict:
    """A worker that ends by itself says why; starting one that cannot even do that again is no use."""
    return Verdict(
        cause=Cause.BACKEND_ERROR,
        message=f"the worker of replica {member.name} ended with exit code {member.code} and no report",
        advice="see its last lines in the log; is the image's Python 3.10 or later?",
    )
