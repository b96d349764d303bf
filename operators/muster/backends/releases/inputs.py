"""Judges whether what users ask of a revision looks like the rows that its model was trained on, input by input.

An input has drifted where its population stability index is above the limit, and the counts are evidence enough:

PSI       sum of (w - r) ln(w / r) over bins, with shares w of n requests and r of m training rows (Siddiqi, Credit Risk
          Scorecards, 2006), less what it is on average where nothing has drifted, (bins - 1) (1/n + 1/m) (Yurdakul, Statistical
          Properties of Population Stability Index, 2018).
evidence  how many times likelier the counts are where requests and training rows differ than where both are the same:
          the ratio of their marginal likelihoods with Jeffreys' prior, Dirichlet(1/2) (Good, The Estimation of Probabilities,
          1965). It is above 1/a at any time, however often it is looked at, with a probability of a at most where nothing
          has drifted (Ville, 1939; Ramdas et al., Game-Theoretic Statistics, Statistical Science 38, 2023).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from muster.core.deployment import Counts
from muster.core.errors import SpecError
from muster.core.histograms import FILE

_FALSE_ALARMS = 0.001  # of a step, shared out among its inputs
_PRIOR = 0.5


@dataclass(frozen=True, kw_only=True)
class InputDrift:
    """How far the requests are from the training rows in one input.

    :param psi: less what chance explains on average; at least 0.
    :param evidence: natural logarithm of how many times likelier drift is than none.
    :param bin: where the requests have most more than the training rows: `asked` and `trained` are their shares there.
    """

    name: str
    requests: int
    psi: float
    evidence: float
    bin: str
    asked: float
    trained: float

    @classmethod
    def of(cls, name: str, asked: Mapping[str, int], trained: Mapping[str, int]) -> InputDrift:
        """Compare the counts of one input, by bin. :param trained: of one row at least; `asked` of one request."""
        bins = sorted(asked.keys() | trained.keys())
        w, r = ([side.get(each, 0) for each in bins] for side in (asked, trained))
        n, m = sum(w), sum(r)
        most = max(range(len(bins)), key=lambda i: w[i] / n - r[i] / m)
        return cls(
            name=name,
            requests=n,
            psi=max(0.0, _psi(w, r) - (len(bins) - 1) * (1 / n + 1 / m)),
            evidence=_marginal(w, [_PRIOR] * len(w)) - _marginal(w, [count + _PRIOR for count in r]),
            bin=bins[most],
            asked=w[most] / n,
            trained=r[most] / m,
        )


def drifts(counts: Counts) -> list[InputDrift]:
    """Return how far each input is from the training rows, the farthest first; empty where nothing was counted."""
    found = [
        InputDrift.of(name, asked, counts.trained[name])
        for name, asked in (counts.asked or {}).items()
        if sum(asked.values()) and sum(counts.trained.get(name, {}).values())
    ]
    return sorted(found, key=lambda each: -each.psi)


def broken_by_inputs(limit: float | None, counts: Counts, *, fewest: int) -> str:
    """Say which input has drifted from the training rows; empty where none has, or nothing is to be judged.

    :param limit: the greatest PSI that is allowed; None judges nothing. :param fewest: from how many requests on it is judged.
    """
    if (
        limit is None or counts.requests <= counts.failed + counts.refused
    ):  # answered ones alone are counted by input
        return ""
    if counts.asked is None:
        return (
            "its server does not count requests by the bins of the training rows, so max_psi cannot be judged: it is of an "
            "earlier release of muster, or was started without counting them"
        )
    found = drifts(counts)
    enough = math.log(max(len(found), 1) / _FALSE_ALARMS)
    far = [each for each in found if each.psi > limit and each.evidence > enough]
    if not far or far[0].requests < fewest:
        return ""
    first, others = far[0], ", ".join(f"{each.name!r} {each.psi:.2g}" for each in far[1:4])
    return (
        f"input {first.name!r:.80} has drifted from the training rows: PSI {first.psi:.2g} in {first.requests} requests, above the "
        f"{limit:g} that is allowed; {first.bin!r:.60} has {first.asked:.0%} of the requests and {first.trained:.0%} of the training "
        "rows: compare how users and the job that trained it make this input"
        + (f"; also {others}" if others else "")
    )


def check_histograms(address: str, files: Collection[str]) -> None:
    """Refuse a version of which no server could say how its training rows look.

    :param files: of the version. :raises SpecError: it lacks ``histograms.json``; the message says what writes it.
    """
    if FILE not in files:
        raise SpecError(
            f"max_psi compares requests with the training rows, and {address} has no {FILE}: have the job that makes it write "
            "one, muster.signature(inputs=…, outputs=…).save(model), or leave max_psi out"
        )


def _psi(asked: list[int], trained: list[int]) -> float:
    """PSI of two lists of counts; an empty bin counts as half a row, so that the logarithm is finite."""
    w, r = ([max(count, 0.5) for count in side] for side in (asked, trained))
    n, m = sum(w), sum(r)
    return sum((a / n - b / m) * math.log((a / n) / (b / m)) for a, b in zip(w, r, strict=True))


def _marginal(counts: list[int], prior: list[float]) -> float:
    """Return the logarithm of the probability of a sequence with these counts, where shares are Dirichlet(`prior`)."""
    n, total = sum(counts), sum(prior)
    return (
        math.lgamma(total)
        - math.lgamma(total + n)
        + sum(math.lgamma(a + count) - math.lgamma(a) for count, a in zip(counts, prior, strict=True))
    )
