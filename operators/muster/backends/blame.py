"""Which of several verdicts on one gang's replicas is the gang's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from muster.core.verdict import Cause, Verdict


def first_of(verdicts: Sequence[Verdict]) -> Verdict | None:
    """Return the first of verdicts that are in the order of time, None where there is none.

    Of a hang, which no rank has alone, it says where the ranks of every replica stood.
    """
    hung = [verdict for verdict in verdicts if verdict.cause is Cause.HANG]
    if len(hung) < 2 or verdicts[0].cause is not Cause.HANG:
        return verdicts[0] if verdicts else None
    silence, _, _ = hung[0].message.partition(": ")
    places = sorted(verdict.message.removeprefix(f"{silence}: ") for verdict in hung)
    return replace(hung[0], rank=None, message=f"{silence}: {', '.join(places)}")
