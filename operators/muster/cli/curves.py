"""Series drawn small on the screen: a line of bars for each name and rank, with its first and last value."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from muster.core.series import Curve, Series

WIDTH = 40
MOST_SOURCES = 4
MOST_NAMES = 16
_BARS = "▁▂▃▄▅▆▇█"


def drawn(series: Series) -> Iterator[tuple[str, str]]:
    """Yield a name and a picture for each curve, first what ranks told, then what replicas used, then what is left out."""
    yield from _some(series.numbers)
    yield from _some(series.use)
    if series.names_left_out:
        yield "left out", f"names beyond the limit: {', '.join(series.names_left_out[:MOST_NAMES])}"
    if series.lines_left_out:
        yield "left out", f"{series.lines_left_out} lines that came too fast; those that are drawn lie evenly"


def bars(values: Sequence[float], *, width: int = WIDTH) -> str:
    """Return at most `width` bars: the mean of each of as many equal stretches of `values`, from least to most."""
    stretches = min(width, len(values))
    means = [
        math.fsum(value / 2 / len(part) for value in part)  # halves, so that no sum or range is infinite
        for part in (
            values[i * len(values) // stretches : (i + 1) * len(values) // stretches]
            for i in range(stretches)
        )
    ]
    least, most = min(means, default=0.0), max(means, default=0.0)
    scale = (len(_BARS) - 1) / (most - least) if most > least else 0.0
    return "".join(_BARS[round((mean - least) * scale)] for mean in means)


def _some(curves: Iterable[Curve]) -> Iterator[tuple[str, str]]:
    names = [list(many) for _, many in groupby(curves, key=lambda curve: curve.name)]
    for many in names[:MOST_NAMES]:
        for curve in many[:MOST_SOURCES]:
            who = f"rank {curve.source}" if curve.source.isdigit() else curve.source
            yield (
                (f"{curve.name}, {who}" if len(many) > 1 or not curve.source.isdigit() else curve.name),
                _line(curve),
            )
        if len(many) > MOST_SOURCES:
            yield many[0].name, f"and of {len(many) - MOST_SOURCES} more: --json has all"
    if len(names) > MOST_NAMES:
        yield "more", f"{len(names) - MOST_NAMES} names: --json has all"


def _line(curve: Curve) -> str:
    said = f"{curve.not_finite} not finite" if curve.not_finite else ""
    if not curve.values:
        return said
    first, last = f"{curve.values[0]:.4g}", f"{curve.values[-1]:.4g}"
    values = last if len(curve.values) == 1 else f"{first} → {last}"
    return "  ".join(part for part in (bars(curve.values), values, said) if part)
