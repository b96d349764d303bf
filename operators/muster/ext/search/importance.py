"""How much each param matters to the metric of a search: a main effect, by ranks, of one param alone.

The measure is eta squared of the Kruskal-Wallis test (Tomczak and Tomczak, *The need to report effect size estimates
revisited*, Trends in Sport Sciences 1(21), 2014): ``(H - k + 1) / (n - k)`` of `n` trials in `k` groups, where H is the statistic of
the test, corrected for ties (Kruskal and Wallis, *Use of ranks in one-criterion variance analysis*, JASA 47, 1952). It is 0
where the param explains no more of the ranking than chance would, and 1 where it explains all of it.

- Compared is what trials told at the first rung: the only one that all reach, so no value is better for having
  trained longer, and none is missing because it was bad.
- Ranks, so that one trial that diverged counts as one; NaN is the worst.
- The groups of a choice are its values, those of a number about as many parts of equal count as the cube root of the trials.
- A param that only some trials have is compared among these.

Of few trials a param that does nothing may explain much by chance: H is then distributed as chi squared with ``k - 1`` degrees of
freedom, whose 95th percentile (by Wilson and Hilferty, *The distribution of chi-square*, PNAS 17, 1931) gives what 19 of 20 such
params stay below.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from muster.ext.search.space import Dimension
from muster.ext.search.spec import SearchSpec
from muster.ext.search.state import Trial

FEWEST = 8
"""Of fewer trials nothing can be said."""
_MOST_PARTS = 10
_NINETEEN_OF_TWENTY = 1.6449  # of the normal distribution


@dataclass(frozen=True, kw_only=True)
class Importance:
    """What one param explains.

    :param share: from 0 to 1; None: too few of the trials have it, or they have one value of it.
    :param chance: the share below which 19 of 20 params stay that do nothing.
    :param trials: how many were compared.
    """

    param: str
    share: float | None
    chance: float
    trials: int

    @property
    def matters(self) -> bool:
        """Whether it explains more than chance would."""
        return self.share is not None and self.share > self.chance


def importance(spec: SearchSpec, trials: Sequence[Trial]) -> tuple[Importance, ...]:
    """Return the importance of each param of a space, the greatest first, those of which nothing is known last."""
    told = [each for each in trials if 0 in each.values]
    found = [_of(spec, name, dimension, told) for name, dimension in spec.space.items()]
    return tuple(sorted(found, key=lambda each: (each.share is None, -(each.share or 0.0))))


def _of(spec: SearchSpec, name: str, dimension: Dimension, trials: Sequence[Trial]) -> Importance:
    having = [each for each in trials if name in each.params]
    values = [spec.order(each.values[0]) for each in having]
    groups = _groups(dimension, [each.params[name] for each in having])
    share = effect(values, groups)
    chance = 1.0 if share is None else by_chance(len(values), len(set(groups)))
    return Importance(param=name, share=share, chance=chance, trials=len(having))


def by_chance(count: int, groups: int) -> float:
    """Return the :func:`effect` below which 19 of 20 groupings stay that explain nothing, of `count` values in `groups`."""
    free = groups - 1
    statistic = free * (1 - 2 / (9 * free) + _NINETEEN_OF_TWENTY * math.sqrt(2 / (9 * free))) ** 3
    return min(1.0, (statistic - free) / (count - groups))


def effect(values: Sequence[float], groups: Sequence[Any]) -> float | None:
    """Return how much of the ranking of `values` their groups explain, from 0 to 1; None where nothing can be said."""
    count, sizes = len(values), Counter(groups)
    if count < FEWEST or not 1 < len(sizes) < count:
        return None
    ranks, tied = _ranks(values)
    if tied == count**3 - count:
        return 0.0  # all are equal
    sums = dict.fromkeys(sizes, 0.0)
    for group, rank in zip(groups, ranks, strict=True):
        sums[group] += rank
    squares = sum(sums[group] ** 2 / size for group, size in sizes.items())
    statistic = 12 / (count * (count + 1)) * squares - 3 * (count + 1)
    statistic /= 1 - tied / (count**3 - count)
    return min(1.0, max(0.0, (statistic - len(sizes) + 1) / (count - len(sizes))))


def _ranks(values: Sequence[float]) -> tuple[list[float], int]:
    """The ranks from 1, equal values with their mean; and the sum of ``t³ - t`` over each `t` equal ones."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks, tied, begin = [0.0] * len(values), 0, 0
    while begin < len(order):
        end = begin
        while end < len(order) and values[order[end]] == values[order[begin]]:
            end += 1
        for place in order[begin:end]:
            ranks[place] = (begin + 1 + end) / 2
        tied += (end - begin) ** 3 - (end - begin)
        begin = end
    return ranks, tied


def _groups(dimension: Dimension, values: Sequence[Any]) -> Sequence[Any]:
    """The group of each value: of a number the part of the ordered values that it falls into, equal ones into one."""
    if dimension.choices:
        return [json.dumps(each, sort_keys=True) for each in values]
    parts = max(2, min(_MOST_PARTS, round(len(values) ** (1 / 3))))
    if len(set(values)) <= parts:
        return values
    part: Mapping[Any, int] = {
        value: place * parts // len(values)
        for place, value in reversed(list(enumerate(sorted(values))))  # of equal ones the first place counts
    }
    return [part[each] for each in values]
