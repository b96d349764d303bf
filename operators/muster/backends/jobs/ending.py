"""Ends jobs without success: the verdict is decided, what runs is cleared away, and then the end is recorded.

In this order, so that a kill between two steps loses nothing: a job with a verdict that has not ended is
brought to its end by the next look at it. An end is recorded only when nothing of the job runs any more, so
its verdict is the last of its log. A gang that does nothing with what it holds is ended so, after a warning in its log.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from muster.core.advice import usual
from muster.core.idle import idle_seconds
from muster.core.series import Series
from muster.core.status import JobState, JobStatus
from muster.core.text import lasting
from muster.core.verdict import Cause, Verdict
from muster.volumes.protocols import Ledger
from muster.volumes.survived import LAST_BYTES, with_survived


def is_decided(status: JobStatus) -> bool:
    """Whether a job's end is decided: it has ended, is committed, or has a verdict."""
    return status.state.ended or status.state is JobState.COMMITTING or status.verdict is not None


def decide(ledger: Ledger, status: JobStatus, verdict: Verdict, *, owner: str | None = None) -> bool:
    """Write down why a job ends.

    :param owner: write it only while this one owns the job.
    :return: False where another one owns it by now, and nothing was written.
    """
    reason = f"is being ended ({verdict.cause.value})"
    return ledger.update(replace(status, verdict=verdict, reason=reason), owner=owner)


def record(
    ledger: Ledger,
    status: JobStatus,
    verdict: Verdict,
    *,
    append: Callable[[str, bytes], None] | None = None,
    now: Callable[[], float] = time.time,
) -> None:
    """Record the end of a job of which nothing runs any more: the verdict in its log, then its last state.

    The verdict names workers of a data engine that were lost before. A look at a job's status may record its end and never waits,
    so only the last MiB of the log is read for them.

    :param append: writes to the log; where several may record one end, it has to write it once.
    """
    verdict = with_survived(verdict, ledger, status.job_id, last_bytes=LAST_BYTES)
    (append or ledger.append)(status.job_id, (verdict.render(job_id=status.job_id) + "\n").encode())
    ledger.update(replace(status, state=ended_as(verdict), ended=now(), reason="", verdict=verdict))


def ended_as(verdict: Verdict) -> JobState:
    """The state of a job that ended without success."""
    return JobState.CANCELLED if verdict.cause is Cause.CANCELLED else JobState.FAILED


_LOOK_SECONDS = 30.0


class Idleness:
    """Looks at one gang.

    :param limit_seconds: how long it may do nothing; 0: for ever.
    :ivar verdict: why the gang is ended; None while it goes on.
    """

    def __init__(self, limit_seconds: float) -> None:
        self._limit, self._next, self._warned = limit_seconds, 0.0, False
        self.verdict: Verdict | None = None

    def look(
        self, series: Callable[[], Series], *, replicas: int, now: float, warn: Callable[[str], None]
    ) -> Verdict | None:
        """Return the verdict while it has done nothing for so long; warn of it at half of that, once each time.

        A gang that computes again before it is ended goes on: then there is no verdict any more.
        """
        if not self._limit or now < self._next:
            return self.verdict
        self._next = now + min(_LOOK_SECONDS, self._limit / 20)
        found = series()
        idle = idle_seconds(found, replicas=replicas, now=now)
        cards = any(curve.name.startswith("gpu") for curve in found.use)
        nothing = "no card computes" if cards else "no output, and less than 5 % of a core in each replica"
        self.verdict = None
        if idle >= self._limit:
            message = f"idle for {lasting(idle)} with {replicas} replica{'s' * (replicas > 1)}: {nothing}"
            self.verdict = usual(Cause.IDLE, message)
        warned, self._warned = self._warned, idle >= self._limit / 2
        if self._warned and not warned:
            warn(
                f"warning: idle for {lasting(idle)}: {nothing}; it is ended after {lasting(self._limit)} (idle=)"
            )
        return self.verdict
