"""What the training rows of a model look like, input by input: the ``histograms.json`` beside its ``signature.json``.

The model servers count users' requests by the same bins (``muster_serving.histograms``), where a rule of a release asks for
it. It is a file of its own since servers of earlier releases refuse a signature with a key that they do not know.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

FILE = "histograms.json"
FORMAT = 1
BINS = 10
FEW_VALUES = 20
_MOST_VALUES = 30
MOST_INPUTS = 200  # these three as muster_serving.histograms reads them
MOST_CHARACTERS = 256
MOST_BYTES = 1 << 20


def of_numbers(values: Sequence[Any]) -> dict[str, Any]:
    """Return the histogram of numbers: a bin for each value where there are at most 20, else between the deciles.

    :param values: sorted, one at least; an array, a series or a list.
    :return: ``edges``, each of which lies between two values that were seen, so that no rounding moves a value to another
        bin; and ``counts``, one more: of the values up to the first edge, and so on.
    """
    few = _few(values)
    found = (edge for k in range(1, BINS) for edge in _around(values, k)) if few is None else few
    edges = sorted(set(found))  # of whole numbers beyond 2**53 several have the same edge
    upto = [0, *(bisect_right(values, edge, key=_plain) for edge in edges), len(values)]
    return {"edges": edges, "counts": [after - before for before, after in pairwise(upto)]}


def of_texts(values: Iterable[str]) -> dict[str, Any]:
    """Return the histogram of texts: the 30 most frequent ``values``, and ``counts``, of which the last is of all others.

    A text of more than 256 characters is one of the others.
    """
    found = Counter(values)
    short = (value for value in found if len(value) <= MOST_CHARACTERS)
    named = sorted(short, key=lambda value: (-found[value], value))[:_MOST_VALUES]
    counts = [found[value] for value in named]
    return {"values": named, "counts": [*counts, found.total() - sum(counts)]}


def _few(values: Sequence[Any]) -> list[float] | None:
    """Return the edges between all values; None where there are more than a few."""
    edges: list[float] = []
    place = bisect_right(values, values[0])
    while place < len(values):
        if len(edges) == FEW_VALUES - 1:
            return None
        edges.append(_between(values[place - 1], values[place]))
        place = bisect_right(values, values[place])
    return edges


def _around(values: Sequence[Any], tenths: int) -> Iterable[float]:
    """Yield the edge above a decile; and one below it, where a tenth of the values are equal to it."""
    decile = values[-(-tenths * len(values) // BINS) - 1]
    below, above = bisect_left(values, decile), bisect_right(values, decile)
    if above < len(values):
        yield _between(decile, values[above])
    if below and (above - below) * BINS >= len(values):
        yield _between(values[below - 1], decile)


def _plain(value: Any) -> Any:
    """Return a number as Python's own: NumPy would round the edge that it is compared with to the value's type."""
    return value.item() if hasattr(value, "item") else value


def _between(lower: Any, upper: Any) -> float:
    """Return the shortest decimal number between two; `low`, where no number is between them."""
    low: float = float(lower)
    high: float = float(upper)
    middle = low / 2 + high / 2  # of halves: the sum of two may be infinite
    for digits in range(1, 18):
        if low < (short := float(f"{middle:.{digits}g}")) < high:
            return short
    return low
