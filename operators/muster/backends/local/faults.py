"""Which of a gang's replicas was at fault first, and what that means for the job."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from muster.backends.local.member import Member
from muster.core.advice import advice_on
from muster.core.replica import Report
from muster.core.room import Room, make_room
from muster.core.verdict import CAUSES, SEEN_LATE_SECONDS, Cause, ExitCode, Verdict, first_of


def first_fault(members: Sequence[Member]) -> Verdict | None:
    """Return why the gang failed, or None where every replica sealed.

    Memory that we saw outgrow its limit explains all else; otherwise it is what happened first.
    """
    overruns = [member for member in members if member.overrun is not None]
    if overruns:
        first = min(overruns, key=lambda member: member.ended_at)
        return _out_of_memory(first, first.report())
    faults = [fault for member in members if (fault := _fault(member)) is not None]
    return first_of([verdict for _, verdict in sorted(faults, key=lambda fault: fault[0])])


def _fault(member: Member) -> tuple[float, Verdict] | None:
    """Return what went wrong in one replica and when; nothing did where it sealed, or where we stopped it."""
    report = member.report()
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
    return Verdict(
        cause=Cause.OUT_OF_MEMORY,
        rank=member.replica.first_rank if known is None else known,
        message=f"replica {member.name} used {overrun.used_gib:.2f} GiB, its limit is {overrun.limit_gib:g} GiB",
        advice=advice_on(Cause.OUT_OF_MEMORY),
    )


def _lost(member: Member, how: str) -> Verdict:
    return Verdict(
        cause=Cause.RANK_LOST,
        rank=member.replica.first_rank,
        message=f"the worker of replica {member.name} {how}",
        advice=advice_on(Cause.RANK_LOST),
    )


def _unreported(member: Member) -> Verdict:
    """The exit code is a contract and names the cause, where a full disk kept the report from us."""
    cause = CAUSES.get(member.code or 0, Cause.BACKEND_ERROR)
    said = f": {member.last_line}" if member.last_line else ""
    if os.strerror(errno.ENOSPC) in said or os.strerror(errno.EDQUOT) in said:
        replica = member.replica
        return Verdict(
            cause=Cause.DISK_FULL,
            message=f"replica {member.name}{said}{_room(replica.checkpoints)}",
            advice=make_room(replica.checkpoints),
        )
    return Verdict(
        cause=cause,
        message=f"the worker of replica {member.name} ended with exit code {member.code} and no report{said}",
        advice="see its last lines in the log",
    )


def _room(path: str) -> str:
    try:
        return f": {Room.of(path)}"
    except OSError:  # a disk that fails is told by what the worker said
        return ""
