"""Counts users' requests by the bins of the training rows, input by input, as ``histograms.json`` beside the model has them.

Each request counts as one row, chosen by chance: rows of one request resemble each other, and a rule that takes them for
independent ones rings for nothing. So it costs a request the same, however many rows it has.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import random
from typing import Any

from muster_serving.column import Array, Column, is_null, is_text, need
from muster_serving.errors import ModelError
from muster_serving.signature import ModelSignature

FILE = "histograms.json"
FORMAT = 1
OTHERS = "(others)"
NULL = "(null)"
MOST_BYTES = 1 << 20
MOST_INPUTS = 200
_MOST_BINS = 64
MOST_CHARACTERS = 256
MOST_ROWS = 1 << 53  # up to here, each whole number is one as a float, too
_MOST_WHOLE = 1 << 64


@dataclass(frozen=True)
class Bins:
    """The bins of one input.

    :param labels: what people are shown; `trained`: of how many training rows the value is in each.
    :param place: returns the number of a value's bin.
    :ivar asked: of how many requests the value is in each.
    """

    labels: tuple[str, ...]
    trained: tuple[int, ...]
    place: Callable[[Any], int]
    asked: list[int] = field(default_factory=list)

    @classmethod
    def parse(cls, where: str, entry: Any, column: Column) -> Bins:
        """Read one input's entry. :raises ModelError: it is not valid, or does not fit the signature."""
        need(isinstance(entry, dict), f"{where}: expected an object, found {entry!r:.60}")
        need(not column.tail, f"{where}: the input has several values a row, which are not counted")
        if column.datatype == "BYTES":
            values, labels = entry.get("values"), ()
            good = (
                isinstance(values, list) and all(map(_is_label, values)) and len(set(values)) == len(values)
            )
            need(
                good,
                f"{where}: values is {values!r:.60}, need a list of texts, all different, of at most {MOST_CHARACTERS} "
                "characters that UTF-8 can hold",
            )
            labels, place = (*values, _unlike(OTHERS, values)), _TextPlaces(values).__getitem__
        else:
            edges = entry.get("edges")
            good = isinstance(edges, list) and all(map(_is_edge, edges))
            need(
                good and all(a < b for a, b in pairwise(edges)),
                f"{where}: edges is {edges!r:.60}, need a list of numbers that rise",
            )
            labels, place = _labels(edges), _between(edges, column)
        if column.nullable:
            labels = (*labels, _unlike(NULL, labels))
        need(len(labels) <= _MOST_BINS, f"{where}: {len(labels)} bins, need at most {_MOST_BINS}")
        counts = entry.get("counts")
        if column.nullable and isinstance(counts, list):
            counts = [*counts, entry.get("nulls", 0)]
        good = isinstance(counts, list) and all(
            type(count) is int and 0 <= count < MOST_ROWS for count in counts
        )
        need(
            good and len(counts) == len(labels) and sum(counts) > 0,
            f"{where}: counts is {counts!r:.60}, need {len(labels)} whole numbers below 2**53, not all of them 0",
        )
        return cls(labels, tuple(counts), _placing(place, column, len(labels) - 1), [0] * len(labels))


class Histograms:
    """The bins of a version's inputs. Requests are counted by one thread, and placed by several at once."""

    def __init__(self, inputs: Mapping[str, Bins]) -> None:
        self.inputs = inputs
        self._places = [(name, bins.place) for name, bins in inputs.items()]

    @classmethod
    def load(cls, folder: Path, signature: ModelSignature) -> Histograms:
        """Read ``histograms.json`` of a version's folder.

        :raises ModelError: it is missing or not valid, or has an input that the signature has not.
        """
        try:
            with (folder / FILE).open("rb") as file:
                text = file.read(MOST_BYTES + 1)
            need(len(text) <= MOST_BYTES, f"{FILE} is larger than {MOST_BYTES} bytes, the most that is read")
            document = json.loads(text)
        except FileNotFoundError as error:
            raise ModelError(
                f"{FILE} is missing, by whose bins requests are to be counted: muster.signature(…).save(folder) writes it"
            ) from error
        except (OSError, ValueError, RecursionError) as error:
            raise ModelError(f"{FILE} cannot be read: {error}") from error
        need(isinstance(document, dict), f"{FILE}: expected an object")
        found = document.get("format")
        need(found == FORMAT, f"{FILE}: format is {found!r:.20}, this server reads {FORMAT}")
        inputs = document.get("inputs")
        need(isinstance(inputs, dict) and bool(inputs), f"{FILE}: inputs: expected one or more by name")
        need(len(inputs) <= MOST_INPUTS, f"{FILE}: inputs: {len(inputs)}, need at most {MOST_INPUTS}")
        unknown = sorted(set(inputs) - set(signature.inputs))
        need(not unknown, f"{FILE}: {', '.join(unknown)!r:.60} is no input of the signature")
        bad = [name for name in inputs if not _is_label(name)]
        need(not bad, f"{FILE}: {bad[:1]!r:.60}: the input's name holds what UTF-8 cannot")
        return cls(
            {
                name: Bins.parse(f"{FILE}: {name!r}", entry, signature.inputs[name])
                for name, entry in inputs.items()
            }
        )

    def places(self, columns: Mapping[str, list[Any] | Array], rows: int) -> tuple[int, ...]:
        """Return the bins of one row of a request, input by input.

        :param columns: by input a flat list of values that the signature allows, or an array.
        """
        row = int(random() * rows) if rows > 1 else 0  # noqa: S311 no secret depends on it
        return tuple([place(columns[name][row]) for name, place in self._places])

    def count(self, places: tuple[int, ...]) -> None:
        """Count an answered request of a user in the bins that :meth:`places` returned."""
        for bins, place in zip(self.inputs.values(), places, strict=True):
            bins.asked[place] += 1


class _TextPlaces(dict[str, int]):
    """The place of each text in a list; the place after the last of any other."""

    def __init__(self, values: list[str]) -> None:
        super().__init__(zip(values, range(len(values)), strict=True))
        self._others = len(values)

    def __missing__(self, value: str) -> int:
        return self._others


def _is_label(text: Any) -> bool:
    """Whether it may be a label of a series: the page of metrics is UTF-8, which has no lone surrogates."""
    return is_text(text) and len(text) <= MOST_CHARACTERS


def _is_edge(edge: Any) -> bool:
    return math.isfinite(edge) if type(edge) is float else type(edge) is int and abs(edge) < _MOST_WHOLE


def _unlike(label: str, values: Sequence[str]) -> str:
    """Return a label that is none of these."""
    while label in values:
        label = f"({label})"
    return label


def _between(edges: list[float], column: Column) -> Callable[[Any], int]:
    """Place a number of JSON as the same of an array: as FP32 it is rounded first, and NumPy would round the edge instead."""
    if column.datatype in ("FP32", "FP64"):
        return lambda value: bisect_left(edges, float(column.dtype(value)))
    return lambda value: bisect_left(edges, int(value))


def _placing(place: Callable[[Any], int], column: Column, last: int) -> Callable[[Any], int]:
    """Place null last, and what a fallback stands for, null too, as the fallback: training rows have that one."""
    codes = column.codes
    if codes is None or column.fallback is None:
        return (lambda value: last if is_null(value) else place(value)) if column.nullable else place
    fallback = next(value for value, code in codes.items() if code == column.fallback)
    return lambda value: place(value if value in codes else fallback)


def _labels(edges: list[float]) -> tuple[str, ...]:
    if not edges:
        return ("any",)
    between = (f"{low!r} to {high!r}" for low, high in pairwise(edges))
    return (f"up to {edges[0]!r}", *between, f"above {edges[-1]!r}")
