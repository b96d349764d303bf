"""The workers and executors that a gang of a data engine lost while its driver went on: a job's record tells them in one line.

The replica of such a worker says so in the job's log (:mod:`muster.worker.launchers.engine`)::

    [rank 2] the engine's worker was lost at 2026-11-26 14:03:22 UTC (killed by SIGKILL), and the driver goes on: another one begins

An executor of Spark's that ends under its worker has a line of that worker's (:mod:`muster.worker.launchers.spark`)::

    [rank 2] an executor of Spark's was lost at 2026-11-26 14:03:22 UTC (exit status 137), and its worker goes on: another one begins

A job that succeeds has the line as its status's reason, one that fails at the end of its verdict's message: fields that earlier
releases read, too.

What a worker of the engine prints itself stands in its rank's name, too, so code that prints such a line is believed: it
could only make its own job's record wrong. The driver, rank 0, is no worker, and no line of it counts.
"""

from __future__ import annotations

import logging
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass, replace

from muster.core.advice import uncommitted
from muster.core.errors import BadOutput, EmptyOutput, MusterError
from muster.core.text import LINE_LENGTH, shortened
from muster.core.verdict import Cause, Verdict
from muster.volumes.protocols import Ledger

log = logging.getLogger(__name__)

_MOST_NAMED = 3
_FIRST, _LAST_BYTES = "[rank 0] ", 16 * 1024
LAST_BYTES = 1 << 20
"""What is read of a log by those who may not wait."""
_SAYS = b" was lost at "
_AT = _SAYS + rb"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC) "
_HOW = rb"\(((?:exit status \d{1,3}|killed by \w{1,16})(?:, out of memory)?)\)"
_WORKER = rb"the engine's worker" + _AT + _HOW + rb", and the driver goes on:"
_EXECUTOR = rb"an executor of Spark's" + _AT + rb"\(exit status (\d{1,3})\), and its worker goes on:"
_LOST = re.compile(rb"^\[rank ([1-9]\d{0,5})\] (?:%b|%b)" % (_WORKER, _EXECUTOR), re.MULTILINE | re.ASCII)
_KILLED, _NO_MEMORY = 128, 52
"""From this exit status of a JVM on, it was killed by a signal; this is Spark's for an executor without memory (SparkExitCode)."""


@dataclass(frozen=True, kw_only=True)
class Loss:
    """A worker that was lost, or an executor of one.

    :param replica: its replica's number, which is its rank.
    :param at: the time, for people.
    :param how: ``killed by SIGKILL``.
    :param executor: whether it is an executor, whose worker lived.
    """

    replica: int
    at: str
    how: str
    executor: bool = False

    def __str__(self) -> str:
        return f"replica {self.replica} at {self.at} ({self.how})"


@dataclass(frozen=True, kw_only=True)
class Losses:
    """How many workers and executors were lost, and the first :data:`_MOST_NAMED` of them.

    :param executors: how many of the count are executors.
    """

    count: int = 0
    executors: int = 0
    first: tuple[Loss, ...] = ()

    def __str__(self) -> str:
        """All in one line for people; empty where there is none."""
        if self.count < 2:
            return self._alone()
        named = ", ".join(map(str, self.first))
        more = f", and {self.count - len(self.first)} more" if self.count > len(self.first) else ""
        return f"{self._counted()} were lost, and the driver went on: {named}{more}"

    @property
    def short(self) -> str:
        """The number and the first one, in at most 150 characters; empty where there is none."""
        if self.count < 2:
            return self._alone()
        of_both = 0 < self.executors < self.count
        which = ("an executor " if self.first[0].executor else "a worker ") * of_both
        return f"{self._counted()} were lost, the first {which}of {self.first[0]}"

    def _counted(self) -> str:
        counts = {"worker": self.count - self.executors, "executor": self.executors}
        return " and ".join(f"{count} {what}{'s' * (count > 1)}" for what, count in counts.items() if count)

    def _alone(self) -> str:
        return "".join(
            f"{'an executor' if lost.executor else 'the worker'} of replica {lost.replica} was lost at {lost.at} ({lost.how}), "
            "and the driver went on without it"
            for lost in self.first
        )


def losses(lines: bytes) -> Iterator[Loss]:
    """Yield the losses in whole lines of a job's log, in their order."""
    if _SAYS in lines:  # a search that is far faster, since few logs have one
        for match in _LOST.finditer(lines):
            rank, at, how, executors_at, status = (part.decode() for part in match.groups(b""))
            if status:
                yield Loss(replica=int(rank), at=executors_at, how=_of_java(int(status)), executor=True)
            else:
                yield Loss(replica=int(rank), at=at, how=how)


def _of_java(status: int) -> str:
    """Say of a JVM's exit status what it stands for."""
    if status == _NO_MEMORY:
        return f"exit status {status}, out of memory"
    names = {number.value: number.name for number in signal.Signals}
    return f"killed by {names[status - _KILLED]}" if status - _KILLED in names else f"exit status {status}"


def survived(ledger: Ledger, job_id: str, *, but: int | None = None, last_bytes: int | None = None) -> Losses:
    """Return what a job's gang has survived; nothing of one that is no data engine's, and where its log cannot be read.

    :param but: the rank at fault for the job's end: its last loss is left out.
    :param last_bytes: read only so much of the log, its end. None: read all of it.
    """
    count, executors, first, last = 0, 0, list[Loss](), -1
    try:
        if ledger.spec(job_id).launcher.drives:
            for lines in _read(ledger, job_id, last_bytes):
                for loss in losses(lines):
                    if loss.replica == but and not loss.executor:
                        last = count
                    if count <= _MOST_NAMED:  # one more than are named: one of them may be left out
                        first.append(loss)
                    count += 1
                    executors += loss.executor
    except (MusterError, OSError) as error:  # the job's end counts more
        log.warning("the log of job %s cannot be read, lost workers are left out: %s", job_id, error)
        return Losses()
    if last >= 0:
        count -= 1
        del first[last : last + 1]
    return Losses(count=count, executors=executors, first=tuple(first[:_MOST_NAMED]))


def with_survived(verdict: Verdict, ledger: Ledger, job_id: str, *, last_bytes: int | None = None) -> Verdict:
    """Return the verdict of a job that failed with what its gang had survived before; a cancelled one's as it is.

    The message may be cut for it, so it is without secrets already: a cut in its middle hides them from a mask.

    :param last_bytes: read only so much of the log, its end. None: read all of it.
    """
    if verdict.cause is Cause.CANCELLED:
        return verdict
    before = survived(ledger, job_id, but=verdict.rank, last_bytes=last_bytes).short
    if not before:
        return verdict
    tail = f"; before, {before}"
    return replace(verdict, message=shortened(verdict.message, LINE_LENGTH - len(tail)) + tail)


def bad_output(error: BadOutput, ledger: Ledger, job_id: str) -> Verdict:
    """Return the verdict on outputs that are no version: of a job that wrote none with the last lines of rank 0, which may say why."""
    empty, message = isinstance(error, EmptyOutput), str(error)
    if empty:
        said = b"".join(_read(ledger, job_id, _LAST_BYTES)).decode("utf-8", "replace").splitlines()
        last = [line.removeprefix(_FIRST) for line in said if line.startswith(_FIRST)][-_MOST_NAMED:]
        message += f"; the last lines of rank 0: {' / '.join(last) or 'none near the end of the log'}"
    advice = uncommitted(Cause.USER_ERROR, job_id, empty=empty)
    return Verdict(cause=Cause.USER_ERROR, message=message, advice=advice)


def _read(ledger: Ledger, job_id: str, last_bytes: int | None) -> Iterator[bytes]:
    """Yield whole lines of a log: all, or its end in one call."""
    if last_bytes is not None:
        begin = max(0, ledger.log_bytes(job_id) - last_bytes)
        lines, _ = ledger.read(job_id, after=begin, limit_bytes=last_bytes)
        yield lines.partition(b"\n")[2] if begin else lines  # the first line is one's end
        return
    lines, cursor = ledger.read(job_id)
    while lines:
        yield lines
        lines, cursor = ledger.read(job_id, after=cursor)
