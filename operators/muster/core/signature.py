"""The ``signature.json`` of a model, written from the rows that it was trained on.

It runs in any image that a job runs in: pandas, polars and numpy are asked by their own methods and not imported. The
model servers read the file (``muster_serving.signature``).
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from muster.core.errors import SpecError
from muster.core.histograms import FILE, FORMAT, MOST_BYTES, MOST_INPUTS, of_numbers, of_texts

MOST_CATEGORIES = 50
MARGIN = 0.5
_EXAMPLE_ROWS = 2
_FORMAT = 1
_TYPES = {
    "bool": "BOOL",
    "boolean": "BOOL",
    **{f"{sign}int{bits}": f"{sign.upper()}INT{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "float16": "FP32",
    "float32": "FP32",
    "float64": "FP64",
    "str": "BYTES",
    "string": "BYTES",
    "utf8": "BYTES",
    "category": "BYTES",
    "categorical": "BYTES",
    "enum": "BYTES",
}
_OF_PYTHON = {bool: "bool", int: "int64", float: "float64", str: "str"}


@dataclass(frozen=True, kw_only=True)
class Signature:
    """What a model takes and answers: :meth:`save` writes it into the model's folder.

    :param document: the content of ``signature.json``, as docs/howto/signature.md describes it.
    :param example: a request that it allows, made of the first rows: ``{"inputs": {name: [values]}}``.
    :param histograms: the content of ``histograms.json``: how the rows look, by input; empty where there is none.
    """

    document: Mapping[str, Any]
    example: Mapping[str, Any]
    histograms: Mapping[str, Any] = field(default_factory=dict)

    def save(self, folder: Path) -> None:
        """Write ``signature.json``, ``histograms.json``, and ``example.json``, which the endpoint's v1 path takes as it is.

        :raises SpecError: ``histograms.json`` would have more than 1 MiB; nothing is written.
        """
        contents = {"signature.json": self.document, "example.json": self.example}
        if self.histograms:
            contents[FILE] = {"format": FORMAT, "inputs": self.histograms}
        texts = {
            name: (json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()
            for name, content in contents.items()
        }
        if len(texts.get(FILE, b"")) > MOST_BYTES:
            raise SpecError(
                f"{FILE} would have {len(texts[FILE])} bytes, and the servers read at most {MOST_BYTES}: name fewer inputs, "
                "histograms=[…]"
            )
        for name, text in texts.items():
            (Path(folder) / name).write_bytes(text)

    def smoke(self, inputs: Any, *, name: str = "rows of the evaluation") -> list[dict[str, Any]]:
        """Return some rows as a smoke request, for a ``smoke.json``; no more than a few are needed.

        :raises SpecError: a column of the signature is missing.
        """
        columns = dict(_columns(inputs, "inputs"))
        wanted = [each["name"] for each in self.document["inputs"]]
        missing = [each for each in wanted if each not in columns]
        if missing:
            raise SpecError(
                f"input {missing[0]!r} is in the signature, and not in these rows: {', '.join(columns)}"
            )
        return [{"name": name, "inputs": {each: _listed(columns[each]) for each in wanted}}]


def signature(
    *,
    inputs: Any,
    outputs: Any,
    categories: Mapping[str, Sequence[Any] | None] | None = None,
    ranges: Mapping[str, tuple[float | None, float | None] | None] | None = None,
    margin: float = MARGIN,
    max_batch: int | None = None,
    histograms: bool | Sequence[str] = True,
) -> Signature:
    """Describe a model by rows that it was given, and what it answered them.

    A text column becomes categories where it is a categorical one, or has at most 50 values, each of which stands there
    twice on average; else any text is allowed. A number may be as small and as large as in the rows, and `margin` times
    that span beyond; one that never is negative stays so. An output of probabilities stays within 0 and 1.

    :param inputs: a pandas or polars frame, a numpy array, or a mapping of names to columns (arrays, series or lists).
    :param outputs: the same, or one column.
    :param categories: by input, instead of what is seen; None allows any value.
    :param ranges: by input or output, the least and the greatest value, instead of what is seen; None allows any value.
    :param max_batch: the most rows in one request.
    :param histograms: the inputs of which it is written down how the rows look, for a rule on drift (``Rules(max_psi=0.2)``); True is
        all with one value a row but free text, the first 200 of them, False is none.
    :raises SpecError: a column has missing values, a type that no request can hold, or no rows.
    """
    told = _Told(categories=dict(categories or {}), ranges=dict(ranges or {}), margin=margin)
    given = list(_columns(inputs, "inputs"))
    answered = list(_columns(outputs, "outputs"))
    names = {name for name, _ in given}
    unknown = [
        *(told.categories.keys() - names),
        *(told.ranges.keys() - names - {name for name, _ in answered}),
    ]
    if unknown:
        raise SpecError(f"{min(unknown)!r} is no column; there is {', '.join(name for name, _ in given)}")
    document: dict[str, Any] = {"format": _FORMAT}
    if max_batch is not None:
        document["max_batch"] = max_batch
    document["inputs"] = [_input(name, _Seen.of(name, column), told) for name, column in given]
    document["outputs"] = [_output(name, _Seen.of(name, column), told) for name, column in answered]
    example = {name: _listed(column, _EXAMPLE_ROWS) for name, column in given}
    entries = {entry["name"]: entry for entry in document["inputs"]}
    return Signature(
        document=document,
        example={"inputs": example},
        histograms={name: _histogram(column) for name, column in _counted(given, entries, histograms)},
    )


@dataclass(frozen=True, kw_only=True)
class _Told:
    categories: Mapping[str, Sequence[Any] | None]
    ranges: Mapping[str, tuple[float | None, float | None] | None]
    margin: float


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """One column, as it was seen.

    :param texts: the distinct values of a column of text, sorted; `fixed` where the column's own type lists them.
    """

    datatype: str
    rows: int
    tail: tuple[int, ...] = ()
    least: float = 0
    greatest: float = 0
    texts: tuple[str, ...] = field(default=())
    fixed: bool = False

    @classmethod
    def of(cls, name: str, column: Any) -> _Seen:
        rows = len(column)
        if not rows:
            raise SpecError(f"column {name!r} has no rows: nothing can be seen of it")
        dtype = _type_name(column)
        datatype = _TYPES.get(dtype)
        missing = _missing(column)
        if missing:
            raise SpecError(
                f"column {name!r} has {missing} missing values or NaN, which no request can hold: fill them, or leave the "
                "column out"
            )
        if datatype is None:
            raise SpecError(
                f"column {name!r} has the type {dtype}: a signature knows numbers, bool and text; make it one of these"
            )
        tail = tuple(getattr(column, "shape", (rows,))[1:])
        if datatype == "BYTES":
            listed = _own_categories(column)
            texts = listed if listed is not None else sorted(set(map(str, _distinct(column))))
            return cls(datatype=datatype, rows=rows, tail=tail, texts=tuple(texts), fixed=listed is not None)
        if datatype == "BOOL":
            return cls(datatype=datatype, rows=rows, tail=tail)
        least, greatest = _plain(_least(column)), _plain(_greatest(column))
        if not (math.isfinite(least) and math.isfinite(greatest)):
            raise SpecError(f"column {name!r} has values that are not finite, which no request can hold")
        return cls(datatype=datatype, rows=rows, tail=tail, least=least, greatest=greatest)


def _input(name: str, seen: _Seen, told: _Told) -> dict[str, Any]:
    entry = _entry(name, seen)
    if name in told.categories:
        categories = told.categories[name]
        return entry if categories is None else entry | {"categories": list(categories)}
    if seen.datatype == "BYTES":
        few = len(seen.texts) <= MOST_CATEGORIES and 2 * len(seen.texts) <= seen.rows
        return entry | {"categories": list(seen.texts)} if seen.fixed or few else entry
    if seen.datatype == "BOOL":
        return entry
    return entry | (_bounds(told.ranges[name]) if name in told.ranges else _seen_bounds(seen, told.margin))


def _counted(
    given: Iterable[tuple[str, Any]], entries: Mapping[str, Mapping[str, Any]], wanted: bool | Sequence[str]
) -> Iterable[tuple[str, Any]]:
    """Return the columns that get a histogram. :raises SpecError: one cannot have any, though it is named."""
    plain = {name for name, entry in entries.items() if "shape" not in entry}
    free = {
        name for name in plain if entries[name]["datatype"] == "BYTES" and "categories" not in entries[name]
    }
    can = plain - free  # what people write is not to be kept in another file
    names = can if wanted is True else set() if wanted is False else set(wanted)
    if wrong := sorted(names - can):
        raise SpecError(
            f"histograms: {wrong[0]!r} is free text, has several values a row or is no input; there is {', '.join(sorted(can))}"
        )
    counted = [(name, column) for name, column in given if name in names]
    if len(counted) > MOST_INPUTS:
        what = f"histograms: {len(counted)} inputs, and the servers count at most {MOST_INPUTS}"
        if wanted is not True:
            raise SpecError(f"{what}: name fewer")
        warnings.warn(
            f"{what}: those after {counted[MOST_INPUTS - 1][0]!r} are left out; histograms=[…] names others",
            stacklevel=3,
        )
    return counted[:MOST_INPUTS]


def _histogram(column: Any) -> dict[str, Any]:
    if _TYPES[_type_name(column)] == "BYTES":
        return of_texts(map(str, _flat(_listed(column))))
    return of_numbers(_sorted(column))


def _output(name: str, seen: _Seen, told: _Told) -> dict[str, Any]:
    """An output keeps a range only where it is told, or a probability: a value beyond what was seen is no failure."""
    entry = _entry(name, seen)
    if name in told.ranges:
        return entry | _bounds(told.ranges[name])
    if seen.datatype in ("FP32", "FP64") and seen.least >= 0 and seen.greatest <= 1:
        return entry | {"min": 0, "max": 1}
    return entry


def _entry(name: str, seen: _Seen) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": name, "datatype": seen.datatype}
    return entry | {"shape": [-1, *seen.tail]} if seen.tail else entry


def _bounds(given: tuple[float | None, float | None] | None) -> dict[str, Any]:
    least, greatest = given or (None, None)
    return {key: value for key, value in (("min", least), ("max", greatest)) if value is not None}


def _seen_bounds(seen: _Seen, margin: float) -> dict[str, Any]:
    more = (seen.greatest - seen.least) * margin
    least, greatest = seen.least - more, seen.greatest + more
    if seen.least >= 0:
        least = max(least, 0)
    if seen.datatype in ("FP32", "FP64"):
        most = 3.4028234663852886e38 if seen.datatype == "FP32" else math.inf
        return {k: v for k, v in (("min", least), ("max", greatest)) if abs(v) < most}
    bits = int(seen.datatype.rpartition("T")[2])
    low, high = (0, 2**bits - 1) if seen.datatype[0] == "U" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return {"min": max(math.floor(least), low), "max": min(math.ceil(greatest), high)}


def _columns(given: Any, side: str) -> Iterable[tuple[str, Any]]:
    """Yield the columns of a frame, a mapping or an array, by name."""
    found: Iterable[tuple[Any, Any]]
    if isinstance(given, Mapping):
        found = given.items()
    elif hasattr(given, "columns"):
        found = [(name, given[name]) for name in given.columns]
    elif getattr(getattr(given, "dtype", None), "names", None):
        found = [(name, given[name]) for name in given.dtype.names]
    elif hasattr(given, "__len__") and not isinstance(given, str | bytes):
        found = [(getattr(given, "name", None) or side.removesuffix("s"), given)]
    else:
        raise SpecError(f"{side} is {type(given).__name__}: expected a frame, an array, or columns by name")
    for name, column in found:
        if not hasattr(column, "__len__") or isinstance(column, str | bytes):
            raise SpecError(
                f"{side}: column {name!r} is {type(column).__name__}, expected an array, a series or a list"
            )
        yield str(name), column


def _type_name(column: Any) -> str:
    dtype = getattr(column, "dtype", None)
    if dtype is None or str(dtype) == "object":
        kinds = {type(value) for value in _listed(column)}
        names = {_OF_PYTHON.get(kind, kind.__name__) for kind in kinds}
        return "float64" if names == {"int64", "float64"} else ", ".join(sorted(names))
    name = str(dtype).lower().partition("(")[0].partition("[")[0]
    return "str" if name.startswith("<u") else name


def _missing(column: Any) -> int:
    if hasattr(column, "isna"):  # pandas
        return int(column.isna().sum())
    if hasattr(column, "null_count"):  # polars
        nan = column.is_nan().sum() if str(column.dtype).startswith("Float") else 0
        return int(column.null_count() + (nan or 0))
    if hasattr(column, "shape") and getattr(column.dtype, "kind", "") == "f":
        return int((column != column).sum())  # NaN alone differs from itself
    return sum(value is None or value != value for value in _flat(_listed(column)))


def _own_categories(column: Any) -> list[str] | None:
    """Return the values that a categorical column's type lists; None where it lists none."""
    if _type_name(column) == "categorical":  # polars', whose categories are those of all such columns
        return sorted(map(str, column.unique().to_list()))
    listed = getattr(getattr(column, "dtype", None), "categories", None)  # pandas', and polars' Enum
    return [str(value) for value in listed] if listed is not None else None


def _distinct(column: Any) -> Iterable[Any]:
    if hasattr(column, "unique"):
        return iter(_listed(column.unique()))
    return _flat(_listed(column))


def _least(column: Any) -> Any:
    return column.min() if hasattr(column, "min") else min(_flat(column))


def _greatest(column: Any) -> Any:
    return column.max() if hasattr(column, "max") else max(_flat(column))


def _sorted(column: Any) -> Sequence[Any]:
    """Return the values in order, as an array, a series or a list."""
    if hasattr(column, "sort_values"):  # pandas
        return cast("Sequence[Any]", column.sort_values().to_numpy())
    if hasattr(column, "null_count"):  # polars
        return cast("Sequence[Any]", column.sort())
    if hasattr(column, "dtype"):  # numpy, which sorts in place
        copied = column.copy()
        copied.sort()
        return cast("Sequence[Any]", copied)
    return sorted(_flat(_listed(column)))


def _plain(value: Any) -> float:
    number: float = value.item() if hasattr(value, "item") else value
    return number


def _listed(column: Any, rows: int | None = None) -> list[Any]:
    """Return a column, or its first rows, as Python's own values."""
    if rows is not None:
        column = column.head(rows) if hasattr(column, "head") else column[:rows]
    for word in ("tolist", "to_list"):
        if hasattr(column, word):
            listed: list[Any] = getattr(column, word)()
            return listed
    return list(column)


def _flat(values: Iterable[Any]) -> Iterable[Any]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _flat(value)
        else:
            yield value
