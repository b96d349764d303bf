"""The decision of a gate, as a pure function of figures: thresholds first, then the champion."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from muster.core.errors import SpecError

_RULE = re.compile(r"\s*(>=|<=|>|<)\s*(\S+)\s*\Z")
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """What one metric must be, ``>= 0.72``."""

    metric: str
    sign: str
    limit: float

    @classmethod
    def parse(cls, metric: str, rule: str) -> Threshold:
        """Read one rule. :raises SpecError: it is not a comparison with a finite number."""
        match = _RULE.match(rule) if isinstance(rule, str) else None
        try:
            limit = float(match[2]) if match else math.nan
        except ValueError:
            limit = math.nan
        if not match or not math.isfinite(limit):
            raise SpecError(f"rule {rule!r:.60} for metric {metric!r:.60}: expected such as '>= 0.72'")
        return cls(metric=metric, sign=match[1], limit=limit)

    @property
    def higher_is_better(self) -> bool:
        """Whether the rule bounds the metric from below."""
        return self.sign[0] == ">"

    def holds(self, value: float) -> bool:
        """Whether a value obeys the rule."""
        return _COMPARE[self.sign](value, self.limit)


@dataclass(frozen=True, kw_only=True)
class Check:
    """One line of the table: what was looked at, found and wanted, and whether it holds."""

    metric: str
    found: float
    wanted: str
    holds: bool


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The candidate against the champion by one metric on one evaluation set.

    :param tolerance: how much worse than the champion the candidate may be.
    """

    metric: str
    candidate: Mapping[str, float]
    champion: Mapping[str, float]
    higher_is_better: bool = True
    tolerance: float = 0.0


def decide(
    thresholds: tuple[Threshold, ...], metrics: Mapping[str, float], comparison: Comparison | None
) -> tuple[Check, ...]:
    """Judge a candidate; the gate opens where every check holds.

    :param metrics: of the candidate's own record.
    :param comparison: None where there is no champion to compare with.
    :raises SpecError: a metric is missing or not a number.
    """
    checks = []
    for each in thresholds:
        found = finite(metrics, each.metric, whose="the candidate")
        wanted = f"{each.sign} {each.limit:g}"
        checks.append(Check(metric=each.metric, found=found, wanted=wanted, holds=each.holds(found)))
    if comparison is not None:
        checks.append(_against_champion(comparison))
    return tuple(checks)


def table(checks: tuple[Check, ...]) -> list[str]:
    """The checks as lines for a log."""
    width = max((len(check.metric) for check in checks), default=0)
    return [
        f"{'ok  ' if check.holds else 'FAIL'}  {check.metric:<{width}}  {check.found:.6g}  wanted {check.wanted}"
        for check in checks
    ]


def finite(metrics: Mapping[str, float], name: str, *, whose: str) -> float:
    """Return one metric. :raises SpecError: it is missing or not finite."""
    if name not in metrics:
        raise SpecError(f"{whose} has no metric {name!r}; it has {', '.join(sorted(metrics)) or 'none'}")
    value = float(metrics[name])
    if not math.isfinite(value):
        raise SpecError(f"metric {name!r} of {whose} is {value}, which is no number to compare")
    return value


def _against_champion(comparison: Comparison) -> Check:
    name, tolerance = comparison.metric, comparison.tolerance
    candidate = finite(comparison.candidate, name, whose="the candidate")
    champion = finite(comparison.champion, name, whose="the champion")
    better = comparison.higher_is_better
    limit = champion - tolerance if better else champion + tolerance
    allowed = f" less {tolerance:g}" if better else f" plus {tolerance:g}"
    return Check(
        metric=name,
        found=candidate,
        wanted=f"{'>=' if better else '<='} the champion's {champion:.6g}{allowed if tolerance else ''}",
        holds=candidate >= limit if better else candidate <= limit,
    )
