"""The space of a search: which params its trials are given, and which values each may have."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from muster.core.errors import SpecError
from muster.core.names import check_identifier, nearest

MOST_POINTS = 1_000_000  # of a grid
_TOO_MANY = f"the grid has more than {MOST_POINTS:,} points: take another sampler"


@dataclass(frozen=True, kw_only=True)
class Dimension:
    """The values of one param: a choice, or the numbers from `low` to `high`, both included.

    :param choices: JSON values; a dimension has these or bounds.
    :param log: drawn evenly by the logarithm.
    :param whole: whole numbers.
    :param step: the distance between values, counted from `low`; None: every number (1 where `whole`).
    :param given: the param is asked only where other params have one of these values.
    """

    low: float | None = None
    high: float | None = None
    choices: tuple[Any, ...] = ()
    log: bool = False
    whole: bool = False
    step: float | None = None
    given: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "choices", tuple(self.choices))
        object.__setattr__(
            self, "given", MappingProxyType({name: tuple(values) for name, values in self.given.items()})
        )
        if self.choices:
            self._check_choices()
        else:
            self._check_bounds()

    def when(self, **values: Any) -> Dimension:
        """Return this dimension, asked only where each of these params has the value, or one of a tuple or list of them."""
        given = {
            name: value if isinstance(value, (tuple, list)) else (value,) for name, value in values.items()
        }
        return replace(self, given={**self.given, **{name: tuple(each) for name, each in given.items()}})

    @property
    def points(self) -> float:
        """How many values there are; infinity for numbers without a step."""
        if self.choices:
            return len(self.choices)
        low, high = self.bounds
        if low == high:
            return 1
        return math.inf if self.step is None else math.floor((high - low) / self.step + 1e-9) + 1

    @property
    def bounds(self) -> tuple[float, float]:
        """The lowest and the highest number. :raises SpecError: it is a choice."""
        if self.low is None or self.high is None:
            raise SpecError("a choice has no bounds")
        return self.low, self.high

    def values(self) -> tuple[Any, ...]:
        """Every value, in order. :raises SpecError: there are too many."""
        if self.choices:
            return self.choices
        if self.points > MOST_POINTS:
            raise SpecError(
                f"{self} has more values than a grid can visit: give it a step, or say choice(…), or take another sampler"
            )
        low, _ = self.bounds
        numbers = [low + number * (self.step or 1) for number in range(int(self.points))]
        return tuple(int(number) for number in numbers) if self.whole else tuple(numbers)

    def index(self, value: Any) -> int | None:
        """The place of a value among the choices; None if it is none of them. True is not 1 here, as in JSON."""
        return next((place for place, each in enumerate(self.choices) if _same(each, value)), None)

    def holds(self, value: Any) -> bool:
        """Whether a value is one of this dimension: a choice, or a number within the bounds and on a step."""
        if self.choices:
            return self.index(value) is not None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            return False
        low, high = self.bounds
        steps = 0.0 if self.step is None else (value - low) / self.step
        on_a_step = math.isclose(steps, round(steps), abs_tol=1e-6)
        return low <= value <= high and on_a_step and (not self.whole or value == int(value))

    def asked(self, params: Mapping[str, Any]) -> bool:
        """Whether a trial with these params, of those that this one depends on, is given it."""
        return all(
            name in params and any(_same(params[name], value) for value in values)
            for name, values in self.given.items()
        )

    def __str__(self) -> str:
        """As an author writes it, ``loguniform(0.0001, 0.1)``."""
        if self.choices:
            return f"choice({', '.join(json.dumps(each) for each in self.choices)})"
        low, high = self.bounds
        kind = "integers" if self.whole else "loguniform" if self.log else "uniform"
        return f"{kind}({low:g}, {high:g})"

    def _check_choices(self) -> None:
        if self.low is not None or self.high is not None:
            raise SpecError("a dimension has choices or bounds, not both")
        for place, each in enumerate(self.choices):
            try:
                json.dumps(each, allow_nan=False)
            except (TypeError, ValueError) as error:
                raise SpecError(f"choice {each!r:.60}: need a JSON value ({error})") from error
            if self.index(each) != place:
                raise SpecError(f"choice {each!r:.60} is there twice")

    def _check_bounds(self) -> None:
        low, high = self.low, self.high
        for name, number in (("low", low), ("high", high), ("step", self.step)):
            if name == "step" and number is None:
                continue
            if isinstance(number, bool) or not isinstance(number, (int, float)) or not math.isfinite(number):
                raise SpecError(f"{name} is {number!r:.60}: need a finite number")
            if self.whole and number != int(number):
                raise SpecError(f"{name} is {number!r}: need a whole number")
        low, high = self.bounds
        if low > high:
            raise SpecError(f"from {low:g} to {high:g}: the first number must be the lower one")
        if self.log and low <= 0:
            raise SpecError(f"from {low:g} to {high:g} by the logarithm: both numbers must be above 0")
        if self.step is not None and self.step <= 0:
            raise SpecError(f"step is {self.step!r}: need a number above 0")
        if self.log and self.step is not None and not (self.whole and self.step == 1):
            raise SpecError("a step does not go with the logarithm")
        if self.whole and self.step is None and not self.log:
            object.__setattr__(self, "step", 1.0)


def uniform(low: float, high: float, *, step: float | None = None) -> Dimension:
    """Any number from `low` to `high`; with a `step` only `low`, `low + step` and so on."""
    return Dimension(low=low, high=high, step=step)


def loguniform(low: float, high: float) -> Dimension:
    """Any number from `low` to `high`, both above 0: as many below 0.001 as between 0.001 and 0.01, say."""
    return Dimension(low=low, high=high, log=True)


def integers(low: int, high: int, *, step: int = 1, log: bool = False) -> Dimension:
    """A whole number from `low` to `high`."""
    return Dimension(low=low, high=high, whole=True, log=log, step=None if log and step == 1 else step)


def choice(*values: Any) -> Dimension:
    """One of some JSON values. :raises SpecError: there is none."""
    if not values:
        raise SpecError("choice() needs a value, such as choice('adam', 'sgd')")
    return Dimension(choices=values)


def sample(space: Mapping[str, Dimension]) -> dict[str, Any]:
    """Return a value for each param, also for those that not every point has."""
    found: dict[str, Any] = {}
    for name, each in space.items():
        low = 0.0 if each.choices else each.bounds[0]
        found[name] = each.choices[0] if each.choices else int(low) if each.whole else low
    return found


def check_space(space: Mapping[str, Dimension]) -> None:
    """Refuse a space in which there is nothing to search for. :raises SpecError: names the dimension and the rule."""
    if not space:
        raise SpecError(
            "the space is empty: name a param and its values, such as {'rate': loguniform(1e-4, 1e-1)}"
        )
    for name, each in space.items():
        check_identifier("param", name)
        if not isinstance(each, Dimension):
            raise SpecError(
                f"param {name!r}: {each!r:.60} is no dimension; say choice({each!r:.30}), uniform(…), loguniform(…) or integers(…)"
            )
        for other, values in each.given.items():
            if other not in space:
                near = nearest(other, space)
                hint = f"; did you mean {near}?" if near else f"; known are {', '.join(space)}"
                raise SpecError(
                    f"param {name!r} depends on {other!r:.60}, which the space does not have{hint}"
                )
            unknown = [value for value in values if not space[other].holds(value)]
            if unknown:
                raise SpecError(
                    f"param {name!r} depends on {other} being {unknown[0]!r:.60}: {other} is {space[other]}"
                )
    in_order(space)
    if math.prod(each.points for each in space.values()) == 1:
        raise SpecError(
            "the space has one point: there is nothing to search for; a plain GangOperator runs it"
        )


def in_order(space: Mapping[str, Dimension]) -> list[str]:
    """Return the params so that each comes after those that it depends on. :raises SpecError: two depend on each other."""
    found: list[str] = []
    left = list(space)
    while left:
        free = [name for name in left if all(other in found for other in space[name].given)]
        if not free:
            raise SpecError(f"params {', '.join(left)} depend on each other in a circle")
        found += free
        left = [name for name in left if name not in free]
    return found


def grid(space: Mapping[str, Dimension]) -> list[dict[str, Any]]:
    """Return every point of a space, conditional params left out where they are not asked.

    :raises SpecError: it has numbers without a step, or more than a million points.
    """
    points: list[dict[str, Any]] = [{}]
    for name in in_order(space):
        dimension = space[name]
        points = [more for point in points for more in _with(point, name, dimension)]
        if len(points) > MOST_POINTS:
            raise SpecError(_TOO_MANY)
    return points


def grid_size(space: Mapping[str, Dimension]) -> int:
    """Return how many points a grid has. :raises SpecError: as :func:`grid`."""
    if any(each.given for each in space.values()):
        return len(grid(space))
    for each in space.values():
        each.values()
    size = math.prod(int(each.points) for each in space.values())
    if size > MOST_POINTS:
        raise SpecError(_TOO_MANY)
    return size


def _same(one: Any, other: Any) -> bool:
    """Whether two JSON values are the same. Python's True equals 1, and so do lists of them."""
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    return isinstance(one, bool) is isinstance(other, bool) and bool(one == other)


def _with(point: dict[str, Any], name: str, dimension: Dimension) -> Iterable[dict[str, Any]]:
    if not dimension.asked(point):
        return [point]
    return [{**point, name: value} for value in dimension.values()]
