"""Measures two ways of doing the same work in interleaved pairs, and prints the ratios.

A machine's speed drifts over minutes, so the two ways take turns and each pair gives one ratio. The result is the
median of the ratios; the spread (their middle half) shows how reliable it is.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass

LEFT_OUT = 77
"""The exit code of a benchmark that cannot run on this machine, after a line that says why (automake's for tests)."""


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """The cost of two ways, and the ratio of one to the other.

    :param unit: of `base` and `ours`, the medians.
    :param low: the lower quartile of the ratios; `high` is the upper one.
    :param limit: the promised ratio: at most, or at least where `at_least`.
    """

    name: str
    unit: str
    base: float
    ours: float
    ratio: float
    low: float
    high: float
    pairs: int
    limit: float
    at_least: bool = False

    @property
    def kept(self) -> bool:
        """Whether the promise was kept."""
        return self.ratio >= self.limit if self.at_least else self.ratio <= self.limit


def compare(
    base: Callable[[], Sequence[float]], ours: Callable[[], Sequence[float]], *, pairs: int
) -> list[tuple[list[float], list[float]]]:
    """Run both `pairs` times in turns, after one uncounted round that fills the caches.

    Both return the same figures in the same order; the result has, for each figure, the measurements of both.
    """
    base(), ours()
    rounds = []
    for turn in range(pairs):
        if turn % 2:
            mine, theirs = ours(), base()
        else:
            theirs, mine = base(), ours()
        rounds.append((theirs, mine))
    figures = len(rounds[0][0])
    return [([b[n] for b, _ in rounds], [o[n] for _, o in rounds]) for n in range(figures)]


def ratio(
    name: str,
    base: Sequence[float],
    ours: Sequence[float],
    *,
    unit: str,
    limit: float,
    at_least: bool = False,
) -> Ratio:
    """Summarise the measurements of one figure by :func:`compare`."""
    ratios = [mine / theirs for theirs, mine in zip(base, ours, strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return Ratio(
        name=name,
        unit=unit,
        base=statistics.median(base),
        ours=statistics.median(ours),
        ratio=statistics.median(ratios),
        low=low,
        high=high,
        pairs=len(ratios),
        limit=limit,
        at_least=at_least,
    )


def show(title: str, ratios: Iterable[Ratio], *, as_json: bool) -> int:
    """Print a table, or JSON; return 1 if a promise is missed.

    :param ratios: a table's rows are printed as they come.
    """
    found: list[Ratio] = []
    for each in ratios:
        if not as_json:
            if not found:
                print(f"{title}: medians of {each.pairs} interleaved pairs")
                print(f"{'':34} {'by hand':>9} {'muster':>9} {'ratio':>7}  {'middle half':>13}  promised")
            _print(each)
        found.append(each)
    if as_json:
        print(json.dumps({"title": title, "ratios": [{**asdict(r), "kept": r.kept} for r in found]}))
    return 0 if all(each.kept for each in found) else 1


def _print(r: Ratio) -> None:
    bound = f"{'≥' if r.at_least else '≤'} {r.limit:g}"
    print(
        f"{f'{r.name}, {r.unit}':34} {r.base:9.3f} {r.ours:9.3f} {r.ratio:7.2f}"
        f"  {r.low:5.2f} to {r.high:4.2f}  {bound}{'' if r.kept else '  MISSED'}",
        flush=True,
    )
