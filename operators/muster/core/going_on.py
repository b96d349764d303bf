"""How a gang goes on whose replicas end: what the first process of a pod and the store service say to each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from muster.core.replica import Report
from muster.core.verdict import Cause, Verdict, first_of


@dataclass(frozen=True, kw_only=True)
class Gone:
    """What a replica says once none of its processes is left.

    :param report: how it ended.
    :param stays: its pod waits for the gang's next attempt; else the pod ends.
    """

    report: Report
    stays: bool = False


class Going(str, Enum):
    """How an attempt of a gang goes on, as seen by its pods."""

    RUNS = "runs"
    STOPS = "stops"
    """A replica is lost: the others stop, and say when they are gone."""
    AGAIN = "starts again"
    """In the same pods, as the next attempt."""
    ENDS = "ends"
    """In these pods it does not go on: the cluster decides by how they end."""


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """What the store service answers about an attempt.

    :param attempt: the next one, where it starts again.
    :param why: it ends. `given_up`: no start is left for the gang, on this cluster or another.
    """

    going: Going
    attempt: int = 0
    why: str = ""
    given_up: bool = False


def first_fault(reports: Sequence[Report]) -> Verdict | None:
    """Return why a gang stopped: what happened first, and not to one that was only told to stop."""
    told = [report for report in reports if report.verdict is not None]
    told.sort(key=lambda report: report.at)
    verdicts = [report.verdict for report in told if report.verdict is not None]
    return first_of([each for each in verdicts if each.cause is not Cause.CANCELLED])


def starts_again(verdict: Verdict) -> str:
    """Return the log's line about a lost rank.

    A job that is cancelled never starts again: of one that does, a pod was told to stop, by who deleted it or took its room.
    """
    who = "" if verdict.rank is None else f", rank {verdict.rank}"
    cause = Cause.EVICTED if verdict.cause is Cause.CANCELLED else verdict.cause
    return f"[muster] {cause.value}{who}: {verdict.message}; the whole gang starts again from its checkpoint"
