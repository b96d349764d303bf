"""The decision of a gate, as a pure function of figures: thresholds first, then the champion."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from muster.core.errors import SpecError

_RULE = re.compile(r"\s*(>=|<=|>|<)\s*(.*\S)\s*\Z", re.DOTALL)
_BESIDE = re.compile(r"([A-Za-z_]\w*)\s*(?:([+-])\s*(\S+))?\Z", re.ASCII)
_NO_NAMES = ("nan", "inf", "infinity")
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """What one metric must be: ``>= 0.72``, or ``>= auc_baseline - 0.005``, another metric of the same model.

    :param beside: the other metric, or empty; `limit` is then what is added to it.
    """

    metric: str
    sign: str
    limit: float
    beside: str = ""

    @classmethod
    def parse(cls, metric: str, rules: str) -> tuple[Threshold, ...]:
        """Read the rules for a metric, with commas between them.

        :raises SpecError: one is not a comparison with a finite number or a metric.
        """
        if not isinstance(rules, str):
            raise SpecError(_wrong(metric, rules))
        return tuple(cls._parse(metric, rule) for rule in rules.split(","))

    @classmethod
    def _parse(cls, metric: str, rule: str) -> Threshold:
        match = _RULE.match(rule)
        number = _number(match[2]) if match else None
        if match and number is not None:
            return cls(metric=metric, sign=match[1], limit=number)
        other = _BESIDE.match(match[2]) if match else None
        step = _number((other[2] or "+") + (other[3] or "0")) if other else None
        if match is None or other is None or step is None or other[1].lower() in _NO_NAMES:
            raise SpecError(_wrong(metric, rule))
        return cls(metric=metric, sign=match[1], limit=step, beside=other[1])

    @property
    def higher_is_better(self) -> bool:
        """Whether the rule bounds the metric from below."""
        return self.sign[0] == ">"

    def check(self, metrics: Mapping[str, float]) -> MetricCheck:
        """Hold it against a model's metrics. :raises SpecError: one is missing or not a number."""
        found = finite(metrics, self.metric, whose="the candidate")
        if not self.beside:
            limit, wanted = self.limit, f"{self.sign} {self.limit:g}"
        else:
            other = finite(metrics, self.beside, whose="the candidate")
            limit, wanted = other + self.limit, f"{self.sign} {self.beside} {other:.6g}{_step(self.limit)}"
        return MetricCheck(
            metric=self.metric, found=found, wanted=wanted, holds=_COMPARE[self.sign](found, limit)
        )


@dataclass(frozen=True, kw_only=True)
class MetricCheck:
    """One line of the table: what was looked at, found and wanted, and whether it holds."""

    metric: str
    found: float
    wanted: str
    holds: bool


@dataclass(frozen=True, kw_only=True)
class ChampionComparison:
    """The candidate against the champion by one metric on one evaluation set.

    :param tolerance: how much worse than the champion the candidate may be.
    """

    metric: str
    candidate: Mapping[str, float]
    champion: Mapping[str, float]
    higher_is_better: bool = True
    tolerance: float = 0.0


def decide(
    thresholds: tuple[Threshold, ...], metrics: Mapping[str, float], comparison: ChampionComparison | None
) -> tuple[MetricCheck, ...]:
    """Judge a candidate; the gate opens where every check holds.

    :param metrics: of the candidate's own record.
    :param comparison: None where there is no champion to compare with.
    :raises SpecError: a metric is missing or not a number.
    """
    checks = [each.check(metrics) for each in thresholds]
    if comparison is not None:
        checks.append(_against_champion(comparison))
    return tuple(checks)


def table(checks: tuple[MetricCheck, ...]) -> list[str]:
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


def _against_champion(comparison: ChampionComparison) -> MetricCheck:
    name, tolerance = comparison.metric, comparison.tolerance
    candidate = finite(comparison.candidate, name, whose="the candidate")
    champion = finite(comparison.champion, name, whose="the champion")
    better = comparison.higher_is_better
    limit = champion - tolerance if better else champion + tolerance
    allowed = _step(-tolerance if better else tolerance)
    return MetricCheck(
        metric=name,
        found=candidate,
        wanted=f"{'>=' if better else '<='} the champion's {champion:.6g}{allowed}",
        holds=candidate >= limit if better else candidate <= limit,
    )


def _step(step: float) -> str:
    return f" {'plus' if step > 0 else 'less'} {abs(step):g}" if step else ""


def _number(text: str) -> float | None:
    """A finite number, or None."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _wrong(metric: str, rule: object) -> str:
    return (
        f"rule {rule!r:.60} for metric {metric!r:.60}: expected such as '>= 0.72', or beside another metric "
        "'>= auc_baseline - 0.005'"
    )
