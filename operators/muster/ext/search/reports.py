"""Reads what the ranks of a trial print: which rungs it has reached, with which value, and what is wrong with its lines.

The line is :mod:`muster.core.progress`'s: ``muster: epoch=3/27 auc=0.71``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from muster.core.progress import Progress, numbers
from muster.ext.search.spec import SearchSpec

T = TypeVar("T")

_MOST_KEPT = 64  # of the newest lines, to compare ranks by: they are seldom further apart


@dataclass
class Reports:
    """The reports of one trial, over all its jobs.

    :param reached: the highest rung that is known to be reached, after a restart of the reader.
    :ivar position: how far the trial is, by the resource. It never falls: lines below it were told before.
    :ivar value: the last value that rank 0 told; None is NaN, or none.
    :ivar warnings: what is wrong with the lines, each kind once.
    """

    spec: SearchSpec
    reached: int = -1
    position: float = -math.inf
    value: float | None = None
    warnings: list[str] = field(default_factory=list)
    _said: set[str] = field(default_factory=set)
    _values: dict[float, float | None] = field(default_factory=dict)
    _others: dict[float, tuple[int, float | None]] = field(default_factory=dict)
    _names: dict[str, None] = field(default_factory=dict)

    def read(self, rank: int, line: str) -> Sequence[tuple[int, float | None]]:
        """Read one line as its rank wrote it; return each rung that the trial has reached by it, the lowest first, with the value told there.

        Rank 0 alone counts. A value that is infinite is as good as NaN, which is None: it compares with nothing.
        """
        told = numbers(line)
        metric, how_far = told.get(self.spec.metric), _resource(told, self.spec)
        if rank == 0:
            self._names |= dict.fromkeys(told)
        if metric is None:
            return ()
        value = metric.value if math.isfinite(metric.value) else None
        if how_far is None:
            if rank == 0:
                self._warn(
                    "how far", f"it tells {self.spec.metric} without {self._resource_name()} in the same line"
                )
            return ()
        self._compare(rank, how_far.value, value)
        if rank != 0 or how_far.value <= self.position:
            return ()
        self._check_total(how_far)
        self.position, self.value = how_far.value, value
        first = self.reached + 1
        beyond = [
            rung for rung in range(first, len(self.spec.rungs)) if self.spec.rungs[rung] <= self.position
        ]
        self.reached = max(beyond, default=self.reached)
        return [(rung, value) for rung in beyond]

    @property
    def told(self) -> bool:
        """Whether rank 0 has told a value."""
        return self.position > -math.inf

    def start_again(self) -> None:
        """Note that another job trains the trial now: what its ranks tell is not compared with the one before."""
        self._values.clear()
        self._others.clear()

    def missing(self) -> str:
        """Say what a trial that has ended did not tell; empty where it told all."""
        if not self.told:
            told = f"; it told {', '.join(self._names)}" if self._names else ""
            return f"it never told {self.spec.metric} with {self._resource_name()}{told}"
        last = self.spec.rungs[-1]
        if self.position < last:
            return f"it ended by itself at {self.position:g}, before the last rung, {last:g}"
        return ""

    def _compare(self, rank: int, position: float, value: float | None) -> None:
        """Compare another rank's value with rank 0's at the same position, whichever is read first."""
        if rank == 0:
            _keep(self._values, position, value)
            other = self._others.pop(position, None)
        else:
            other = (rank, value)
            if position not in self._values:
                _keep(self._others, position, other)
                return
        if other is not None and other[1] != self._values[position]:
            mine, theirs = _text(self._values[position]), _text(other[1])
            self._warn(
                "ranks",
                f"at {position:g} rank 0 tells {self.spec.metric}={mine} and rank {other[0]} {theirs}: rank 0's counts",
            )

    def _check_total(self, how_far: Progress) -> None:
        total, last = how_far.total, self.spec.rungs[-1]
        if total is not None and total < last and not self.spec.until:
            self._warn(
                "total", f"it trains to {total:g}, and the last rung is {last:g}: it cannot be reached"
            )

    def _resource_name(self) -> str:
        return self.spec.resource or "a number that has a total, such as epoch=1/27"

    def _warn(self, kind: str, text: str) -> None:
        if kind not in self._said:
            self._said.add(kind)
            self.warnings.append(text)


def _resource(told: dict[str, Progress], spec: SearchSpec) -> Progress | None:
    """Return the number that says how far a trial is: the named one, or the first that is told with a total."""
    if spec.resource:
        found = told.get(spec.resource)
    else:
        found = next(
            (each for name, each in told.items() if each.total is not None and name != spec.metric), None
        )
    return found if found is not None and found.sensible else None


def _keep(kept: dict[float, T], position: float, value: T) -> None:
    kept[position] = value
    if len(kept) > _MOST_KEPT:
        del kept[next(iter(kept))]


def _text(value: float | None) -> str:
    return "nan" if value is None else f"{value:g}"
