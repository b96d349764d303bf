"""The workers that a gang of a data engine lost while its driver went on: a job's record tells them in one line.

The replica of such a worker says so in the job's log (:mod:`muster.worker.launchers.engine`)::

    [rank 2] the engine's worker was lost at 2026-11-26 14:03:22 UTC (killed by SIGKILL), and the driver goes on: another one begins

A job that succeeds has the line as its status's reason, one that fails at the end of its verdict's message: fields that earlier
releases read, too.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from muster.core.errors import MusterError
from muster.core.text import LINE_LENGTH, shortened
from muster.core.verdict import Cause, Verdict
from muster.volumes.protocols import Ledger

log = logging.getLogger(__name__)

MOST_NAMED = 3
_LOST = re.compile(
    rb"^\[rank (\d{1,6})\] the engine's worker was lost at (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC) \(([\w ,]{1,60})\), and the driver goes on:",
    re.MULTILINE | re.ASCII,
)


@dataclass(frozen=True, kw_only=True)
class Loss:
    """A worker that was lost.

    :param replica: its replica's number, which is its rank.
    :param at: the time, for people.
    :param how: ``killed by SIGKILL``.
    """

    replica: int
    at: str
    how: str

    def __str__(self) -> str:
        return f"replica {self.replica} at {self.at} ({self.how})"


def losses(lines: bytes) -> list[Loss]:
    """Return the losses in whole lines of a job's log, in their order."""
    return [
        Loss(replica=int(rank), at=at.decode(), how=how.decode()) for rank, at, how in _LOST.findall(lines)
    ]


def as_line(found: Sequence[Loss]) -> str:
    """Return losses in one line for people; empty where there is none."""
    if not found:
        return ""
    if len(found) == 1:
        lost = found[0]
        return f"the worker of replica {lost.replica} was lost at {lost.at} ({lost.how}), and the driver went on without it"
    named = ", ".join(map(str, found[:MOST_NAMED]))
    more = f", and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
    return f"{len(found)} workers were lost, and the driver went on: {named}{more}"


def survived(ledger: Ledger, job_id: str, *, but: int | None = None) -> str:
    """Return in one line what a job's gang has survived; empty of one that is no data engine's, and where its log cannot be read.

    :param but: a rank whose losses are left out, since it is at fault for the job's end.
    """
    found = list[Loss]()
    try:
        if not ledger.spec(job_id).launcher.drives:
            return ""
        lines, cursor = ledger.read(job_id)
        while lines:
            found += losses(lines)
            lines, cursor = ledger.read(job_id, after=cursor)
    except (MusterError, OSError) as error:  # the job's end counts more
        log.warning("the log of job %s cannot be read, lost workers are left out: %s", job_id, error)
        return ""
    return as_line([loss for loss in found if loss.replica != but])


def with_survived(verdict: Verdict, ledger: Ledger, job_id: str) -> Verdict:
    """Return the verdict of a job that failed with what its gang had survived before; a cancelled one's as it is."""
    before = "" if verdict.cause is Cause.CANCELLED else survived(ledger, job_id, but=verdict.rank)
    if not before:
        return verdict
    tail = f"; before, {before}"
    return replace(verdict, message=shortened(verdict.message, LINE_LENGTH - len(tail)) + tail)
