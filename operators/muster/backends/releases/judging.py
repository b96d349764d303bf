"""Whether what must hold of a revision does: its counts beside the champion's, and what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter

from muster.backends.releases.counting import percentile
from muster.backends.releases.plan import Comparison, Rules
from muster.core.deployment import Answer, Counts, SmokeRequest

_P95 = 0.95


def broken_by_counts(rules: Rules, ours: Counts, theirs: Counts, *, ending: bool = False) -> str:
    """Say which rule the counts of a step break; empty where none.

    Errors are judged from the first one on: when there are more than the fewest requests would allow, more
    good ones up to there cannot mend that. At the end of a step its own requests count, however few.

    :param ours: of the revision that is released, `theirs` the champion's, over the same time.
    :param ending: whether the step is over.
    """
    judged = max(ours.requests, 1 if ending else rules.judged_from)
    if ours.failed > rules.max_error_share * judged:
        return (
            f"{ours.failed} of {ours.requests} requests failed, "
            f"above the {rules.max_error_share:.2%} that are allowed"
        )
    return _too_slow(rules, ours, theirs)


def told(ours: Counts, theirs: Counts) -> str:
    """Say for people what a step has counted, of the revision and beside it of the champion."""
    own, champions = percentile(ours, _P95), percentile(theirs, _P95)
    slow = "" if own is None else f", 95 % within {own * 1000:.3g} ms"
    beside = "" if own is None or champions is None else f", the champion's within {champions * 1000:.3g} ms"
    return f"{ours.requests} requests, {ours.failed} failed{slow}{beside}"


def _too_slow(rules: Rules, ours: Counts, theirs: Counts) -> str:
    if rules.max_p95_ratio is None or min(ours.requests, theirs.requests) < rules.judged_from:
        return ""
    own, champions = percentile(ours, _P95), percentile(theirs, _P95)
    if own is None or champions is None:
        return ""
    if own <= rules.max_p95_ratio * champions + rules.p95_slack_seconds:
        return ""
    return (
        f"95 % of its requests took up to {own * 1000:.3g} ms, the champion's {champions * 1000:.3g} ms: more "
        f"than {rules.max_p95_ratio:g} times that and {rules.p95_slack_seconds * 1000:g} ms"
    )


def broken_by_answers(request: SmokeRequest, answers: Sequence[Answer]) -> str:
    """Say which replica answers a smoke request otherwise than expected; empty where none does."""
    if not answers:
        return f"smoke request {request.name!r:.80}: no replica is there to be asked"
    for answer in answers:
        if why := answer.error or _unexpected(request, answer):
            where = f" of {answer.replica}" if len(answers) > 1 else ""
            return f"smoke request {request.name!r:.80}{where}: {why}"
    return ""


def _unexpected(request: SmokeRequest, answer: Answer) -> str:
    outputs = answer.outputs or {}
    for name, bounds in request.expect.items():
        if name not in outputs:
            return f"output {name!r:.80} is expected; the model answers {', '.join(outputs) or 'none'}"
        for value in outputs[name]:
            if not isinstance(value, (int, float)):
                return f"output {name!r} is {value!r:.40}, expected a number"
            if not bounds.get("min", value) <= value <= bounds.get("max", value):
                wanted = " and ".join(
                    f"{kind} {bound:g}" for kind, bound in sorted(bounds.items(), reverse=True)
                )
                return f"output {name!r} is {value!r:.40}, expected {wanted}"
    return ""


def broken_by_comparison(
    comparison: Comparison, candidate: Sequence[Sequence[float]], champion: Sequence[Sequence[float]]
) -> str:
    """Say in what the candidate falls behind the champion; empty where it does not.

    :param candidate: what it answered for the output in question, one list a request; `champion` likewise.
    """
    ours, theirs = [v for each in candidate for v in each], [v for each in champion for v in each]
    if len(ours) != len(theirs) or not ours:
        return f"it answers {len(ours)} rows of {comparison.output!r:.40}, the champion {len(theirs)}"
    if comparison.agreement is not None:
        same = sum(abs(a - b) <= comparison.tolerance for a, b in zip(ours, theirs, strict=True)) / len(ours)
        if same < comparison.agreement:
            return f"it agrees with the champion in {same:.1%} of the rows, need {comparison.agreement:.1%}"
    return _worse(comparison, ours, theirs) if comparison.metric else ""


def _worse(comparison: Comparison, ours: list[float], theirs: list[float]) -> str:
    assert comparison.metric is not None
    labels = [label for each in comparison.labels for label in each]
    if len(labels) != len(ours):
        return f"it answers {len(ours)} rows of {comparison.output!r:.40} to {len(labels)} labels"
    own, champions = (measure(comparison.metric, answers, labels) for answers in (ours, theirs))
    lost = own - champions if comparison.metric in ("mae", "rmse") else champions - own
    if lost <= comparison.worse_by:
        return ""
    return (
        f"{comparison.metric} is {own:.4g} on the labelled requests, the champion's {champions:.4g}: "
        f"worse by more than {comparison.worse_by:g}"
    )


def measure(metric: str, answers: Sequence[float], labels: Sequence[float]) -> float:
    """A metric of answers by their labels: share of right ones (cut at 0.5), area under the curve, mean errors."""
    pairs = list(zip(answers, labels, strict=True))
    if metric == "accuracy":
        return sum((a >= 0.5) == (b >= 0.5) for a, b in pairs) / len(pairs)
    if metric == "mae":
        return sum(abs(a - b) for a, b in pairs) / len(pairs)
    if metric == "rmse":
        return float((sum((a - b) ** 2 for a, b in pairs) / len(pairs)) ** 0.5)
    return _area(pairs)


def _area(pairs: Sequence[tuple[float, float]]) -> float:
    """The share of pairs of a positive and a negative that are in order, ties by half.

    From the sum of the positives' ranks (Mann-Whitney), as there may be too many pairs to look at each.
    """
    positives = sum(label >= 0.5 for _, label in pairs)
    negatives = len(pairs) - positives
    if not positives or not negatives:
        return 0.5  # nothing to tell apart
    ranks, below = 0.0, 0
    for _, tied in groupby(sorted(pairs), key=itemgetter(0)):
        labels = [label >= 0.5 for _, label in tied]
        ranks += sum(labels) * (below + (len(labels) + 1) / 2)
        below += len(labels)
    return (ranks - positives * (positives + 1) / 2) / (positives * negatives)
