"""One start of a whole gang: all of its replicas together, until the last of them has ended."""

from __future__ import annotations

import select
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from muster.backends.local.faults import first_fault
from muster.backends.local.limits import limit_memory
from muster.backends.local.member import Member
from muster.backends.local.spawn import Worker
from muster.core.replica import Replica
from muster.core.verdict import Cause, Verdict

_TICK_SECONDS = 0.1
_LOOK_SECONDS = 0.2  # at memory; where no cgroup keeps the limit this reads /proc
# When one replica fails, its peers often fail of that a moment later: they get this long to say so,
# because the one that failed first is at fault.
_SETTLE_SECONDS = 0.5
# A worker gives its ranks the job's own grace and then needs a moment itself.
MARGIN_SECONDS = 2.0


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
        return self._outcome()

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

    def _outcome(self) -> Verdict | None:
        if self._ended is not None:
            return self._ended
        return first_fault(self.members)
