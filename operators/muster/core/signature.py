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
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

from muster.core.errors import SpecError
from muster.core.histograms import FILE, FORMAT, MOST_BYTES, MOST_INPUTS, of_numbers, of_texts

MOST_CATEGORIES = 50
MARGIN = 0.5
_EXAMPLE_ROWS = 2
_MOST_NAME = 256
_FORMAT = 2
_TYPES = {
    "bool": "BOOL",
    "boolean": "BOOL",
    **{f"{sign}int{bits}": f"{sign.upper()}INT{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "float16": "FP32",
    "float32": "FP32",
    "float64": "FP64",
    "float": "FP32",  # these two are Arrow's
    "double": "FP64",
    **dict.fromkeys(("str", "string", "large_string", "utf8", "categorical", "enum"), "BYTES"),
}
_DATES = ("datetime64", "date")
_PLAIN = {"BOOL": "bool", "FP32": "float32", "FP64": "float64"} | {n.upper(): n for n in _TYPES if "int" in n}
_OF_PYTHON = {bool: "bool", int: "int64", float: "float64", str: "str"}
_LIMITS = {
    **{f"INT{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)},
    **{f"UINT{bits}": (0, 2**bits - 1) for bits in (8, 16, 32, 64)},
    "FP32": (-3.4028234663852886e38, 3.4028234663852886e38),
    "FP64": (-1.7976931348623157e308, 1.7976931348623157e308),
}


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
        return [{"name": name, "inputs": {each: _requested(columns[each]) for each in wanted}}]


def signature(
    *,
    inputs: Any,
    outputs: Any,
    closed: bool | Sequence[str] = False,
    categories: Mapping[str, Sequence[Any] | None] | None = None,
    ranges: Mapping[str, tuple[float | None, float | None] | None] | None = None,
    margin: float = MARGIN,
    max_batch: int | None = None,
    histograms: bool | Sequence[str] = True,
    fallback: Mapping[str, Any] | None = None,
) -> Signature:
    """Describe a model by rows that it was given, and what it answered them.

    An input with a missing value is nullable. The least and the greatest of numbers are recorded, and the categories of a
    categorical column, or of a text column with at most 50 values, each of which stands there twice on average. Users'
    values outside are answered and counted, unless the input is closed. An output of probabilities stays within 0 and 1.

    :param inputs: a pandas or polars frame, a numpy array, or a mapping of names to columns (arrays, series or lists).
    :param outputs: the same, or one column.
    :param closed: the inputs of which values outside are refused, of numbers those `margin` times the span beyond; True is all
        with a range or categories.
    :param categories: by input, instead of what is seen: all others are refused; None allows any value.
    :param ranges: by input or output, the least and the greatest value, instead of what is seen: all others are refused; None
        allows any value.
    :param max_batch: the most rows in one request.
    :param histograms: the inputs of which it is written down how the rows look, for a rule on drift (``Rules(max_psi=0.2)``); True is
        all with one value a row but free text, the first 200 of them, False is none.
    :param fallback: by input, the one of its categories that stands for null and for every value that is none of them.
    :raises SpecError: a column has a type that no request can hold, no rows or no values, or another one's name.
    """
    told = _Told(
        categories=dict(categories or {}),
        ranges=dict(ranges or {}),
        margin=margin,
        closed=closed if isinstance(closed, bool) else frozenset(closed),
        fallback=dict(fallback or {}),
    )
    given = list(_columns(inputs, "inputs"))
    answered = list(_columns(outputs, "outputs"))
    names = {name for name, _ in given}
    unknown = [
        *((told.categories.keys() | told.fallback.keys()) - names),
        *(told.ranges.keys() - names - {name for name, _ in answered}),
        *(frozenset() if isinstance(told.closed, bool) else told.closed - names),
    ]
    if unknown:
        raise SpecError(f"{min(unknown)!r} is no column; there is {', '.join(name for name, _ in given)}")
    document: dict[str, Any] = {"format": _FORMAT}
    if max_batch is not None:
        document["max_batch"] = max_batch
    seen = {name: _Seen.of(name, column) for name, column in given}
    document["inputs"] = [_input(name, each, told) for name, each in seen.items()]
    document["outputs"] = [_output(name, _Seen.of(name, column), told) for name, column in answered]
    example = {name: _requested(column, _EXAMPLE_ROWS) for name, column in given}
    entries = {entry["name"]: entry for entry in document["inputs"]}
    return Signature(
        document=document,
        example={"inputs": example},
        histograms={name: _histogram(seen[name]) for name in _counted(entries, histograms)},
    )


@dataclass(frozen=True, kw_only=True)
class _Told:
    categories: Mapping[str, Sequence[Any] | None]
    ranges: Mapping[str, tuple[float | None, float | None] | None]
    margin: float
    closed: bool | frozenset[str]
    fallback: Mapping[str, Any]

    def closes(self, name: str) -> bool:
        return self.closed if isinstance(self.closed, bool) else name in self.closed


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """One column, as it was seen.

    :param present: the values without the missing ones, of which there are `nulls`; dates are text.
    :param categories: those that the column's own type lists, or the distinct texts, sorted; None where it has neither.
    :param frame: what makes such a column of a pandas frame again: empty where its values alone do.
    """

    datatype: str
    rows: int
    tail: tuple[int, ...]
    present: Any
    nulls: int
    categories: list[Any] | None
    frame: Mapping[str, Any]

    @classmethod
    def of(cls, name: str, column: Any) -> _Seen:
        """Look at a column. :raises SpecError: no signature can describe it."""
        rows = len(column)
        if not rows:
            raise SpecError(f"column {name!r} has no rows: nothing can be seen of it")
        present = _present(column)
        tail = tuple(getattr(column, "shape", (rows,))[1:])
        nulls = math.prod((rows, *tail)) - len(present)
        own = _own_categories(column)
        dtype = _type_name(present if own is None else own)
        listed = list(map(_plain, own)) if own is not None else None
        if own is not None and dtype in _DATES:
            listed, present, datatype = list(map(str, own)), [str(value) for value in present], "BYTES"
        else:
            datatype = _TYPES.get(dtype, "")
        if not len(present) and not (datatype and own is None):
            raise SpecError(f"column {name!r} has nothing but missing values: leave it out")
        if not datatype:
            what = "a signature knows numbers, bool and text, and categories of these and of dates; make it one of these"
            raise SpecError(f"column {name!r} has the type {dtype}: {what}")
        if datatype == "BYTES" and own is None:
            distinct = present.unique() if hasattr(present, "unique") else present
            listed = sorted(set(map(str, _listed(distinct))))
        try:
            "".join(listed or ()).encode() if datatype == "BYTES" else b""
        except UnicodeEncodeError as error:
            what = f"{error.object[error.start : error.end]!r:.20}"
            raise SpecError(
                f"column {name!r} has text that UTF-8 cannot hold, {what}: leave its rows out"
            ) from error
        if datatype in _LIMITS and len(present):
            extremes = (_least(present), _greatest(present)) if listed is None else (min(listed), max(listed))
            if not all(math.isfinite(each) for each in extremes):
                raise SpecError(
                    f"column {name!r} has values that are not finite, which no request can hold: make them missing"
                )
        frame = _frame(name, column, datatype, dtype)
        return cls(
            datatype=datatype,
            rows=rows,
            tail=tail,
            present=present,
            nulls=nulls,
            categories=listed,
            frame=frame,
        )

    @property
    def fixed(self) -> bool:
        """Whether the categories are those of the column's own type, in whose order the model may have their places."""
        return self.categories is not None and (
            self.datatype != "BYTES"
            or self.frame.get("dtype") == "category"
            or _type_name(self.present) in ("categorical", "enum")
        )


def _input(name: str, seen: _Seen, told: _Told) -> dict[str, Any]:
    entry = _entry(name, seen)
    if seen.nulls:
        entry["nullable"] = True
    if seen.frame:
        entry["frame"] = dict(seen.frame)
    if name in told.categories:
        entry |= _told_categories(name, seen, told.categories[name])
    elif name in told.ranges:
        entry |= _bounds(name, seen, told.ranges[name], closed=True)
    elif seen.fixed or (seen.categories is not None and _few(seen)):
        entry["categories"] = seen.categories
    elif seen.datatype in _LIMITS and len(seen.present):
        entry |= _seen_bounds(name, seen, told)
    if told.closes(name) and entry.keys() & {"min", "max", "categories"}:
        entry["closed"] = True
    elif not isinstance(told.closed, bool) and told.closes(name):
        raise SpecError(
            f"closed: {name!r} has no range and no categories: name these, ranges= or categories="
        )
    return entry | _fallback(name, entry, told.fallback[name]) if name in told.fallback else entry


def _fallback(name: str, entry: Mapping[str, Any], value: Any) -> dict[str, Any]:
    listed = entry.get("categories", [])
    if (type(value), value) not in [(type(each), each) for each in listed]:
        there = ", ".join(map(str, listed)) or "none"
        raise SpecError(
            f"fallback: {name!r} has no category {value!r:.60}, there is {there:.120}: fill its missing values with it before the "
            "model is trained, so that the model has learned it"
        )
    return {"nullable": True, "fallback": value}


def _few(seen: _Seen) -> bool:
    texts = len(seen.categories or ())
    return 0 < texts <= MOST_CATEGORIES and 2 * texts <= len(seen.present)


def _told_categories(name: str, seen: _Seen, told: Sequence[Any] | None) -> dict[str, Any]:
    if seen.fixed:  # the model may have their places: other ones would be those of other values
        if told is not None:
            raise SpecError(
                f"categories: {name!r} is a categorical column, whose own categories count: closed=[{name!r}] refuses others"
            )
        return {"categories": seen.categories}
    if told is None:
        return {}
    listed = list(map(_plain, told))
    kinds = {"BOOL": (bool,), "BYTES": (str,), "FP32": (int, float), "FP64": (int, float)}.get(
        seen.datatype, (int,)
    )
    wrong = [each for each in listed if type(each) not in kinds]
    if wrong or not listed:
        found = repr(wrong[0]) if wrong else "none"
        raise SpecError(f"categories: {name!r} has the type {seen.datatype}, found {found:.60}")
    return {"categories": listed, "closed": True}


def _counted(entries: Mapping[str, Mapping[str, Any]], wanted: bool | Sequence[str]) -> Sequence[str]:
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
    counted = [name for name in entries if name in names]
    if len(counted) > MOST_INPUTS:
        what = f"histograms: {len(counted)} inputs, and the servers count at most {MOST_INPUTS}"
        if wanted is not True:
            raise SpecError(f"{what}: name fewer")
        warnings.warn(
            f"{what}: those after {counted[MOST_INPUTS - 1]!r} are left out; histograms=[…] names others",
            stacklevel=3,
        )
    return counted[:MOST_INPUTS]


def _histogram(seen: _Seen) -> dict[str, Any]:
    if seen.datatype == "BYTES":
        made = of_texts(map(str, _listed(seen.present)))
    elif not len(seen.present):
        made = {"edges": [], "counts": [0]}
    else:
        made = of_numbers(_sorted(seen.present))
    return made | {"nulls": seen.nulls} if seen.nulls else made


def _output(name: str, seen: _Seen, told: _Told) -> dict[str, Any]:
    """An output keeps a range only where it is told, or a probability: a value beyond what was seen is no failure."""
    if seen.nulls:
        raise SpecError(
            f"output {name!r} has {seen.nulls} missing values or NaN, which no answer can hold: fill them, or leave the rows out"
        )
    entry = _entry(name, seen)
    if name in told.ranges:
        return entry | _bounds(name, seen, told.ranges[name])
    if seen.datatype in ("FP32", "FP64") and _least(seen.present) >= 0 and _greatest(seen.present) <= 1:
        return entry | {"min": 0, "max": 1}
    return entry


def _entry(name: str, seen: _Seen) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": name, "datatype": seen.datatype}
    return entry | {"shape": [-1, *seen.tail]} if seen.tail else entry


def _bounds(
    name: str, seen: _Seen, given: tuple[float | None, float | None] | None, *, closed: bool = False
) -> dict[str, Any]:
    least, greatest = (each if each is None else _plain(each) for each in given or (None, None))
    found = {key: value for key, value in (("min", least), ("max", greatest)) if value is not None}
    if found and seen.datatype not in _LIMITS:
        raise SpecError(f"ranges: {name!r} has the type {seen.datatype}: only numbers have a range")
    if least is not None and greatest is not None and least > greatest:
        raise SpecError(f"ranges: {name!r} has {least} to {greatest}: the least comes first")
    return found | ({"closed": True} if found and closed else {})


def _seen_bounds(name: str, seen: _Seen, told: _Told) -> dict[str, Any]:
    """Return the range that was seen, exactly; of a closed input with the margin on both sides."""
    least, greatest = _least(seen.present), _greatest(seen.present)
    if not told.closes(name):
        return {"min": least, "max": greatest}
    if least == greatest:
        raise SpecError(
            f"closed: {name!r} has the value {least} alone, so all others would be refused: leave it out, or say its range, "
            f"ranges={{{name!r}: (…, …)}}"
        )
    more = (Fraction(greatest) - Fraction(least)) * Fraction(told.margin)
    low, high = _LIMITS[seen.datatype]
    low = max(low, 0) if least >= 0 else low
    bounds = max(Fraction(least) - more, Fraction(low)), min(Fraction(greatest) + more, Fraction(high))
    if "INT" in seen.datatype:
        return {"min": math.floor(bounds[0]), "max": math.ceil(bounds[1])}
    return {"min": float(bounds[0]), "max": float(bounds[1])}


def _columns(given: Any, side: str) -> Iterable[tuple[str, Any]]:
    """Yield the columns of a frame, a mapping or an array, by name."""
    names: Sequence[Any]
    if isinstance(given, Mapping):
        names = list(given)
    elif hasattr(given, "columns"):
        names = list(given.columns)
    elif getattr(getattr(given, "dtype", None), "names", None):
        names = given.dtype.names
    elif hasattr(given, "__len__") and not isinstance(given, str | bytes):
        names = [getattr(given, "name", None) or side.removesuffix("s")]
        given = {names[0]: given}
    else:
        raise SpecError(f"{side} is {type(given).__name__}: expected a frame, an array, or columns by name")
    texts = list(map(str, names))
    for name in texts:
        if texts.count(name) > 1:
            raise SpecError(
                f"{side}: {texts.count(name)} columns have the name {name!r}: rename them, or leave one out"
            )
        if not 0 < len(name) <= _MOST_NAME:
            raise SpecError(
                f"{side}: a column has the name {name!r:.60}: it needs 1 to {_MOST_NAME} characters"
            )
    for name, text in zip(names, texts, strict=True):
        column = given[name]
        if not hasattr(column, "__len__") or isinstance(column, str | bytes):
            raise SpecError(
                f"{side}: column {text!r} is {type(column).__name__}, expected an array, a series or a list"
            )
        yield text, column


def _present(column: Any) -> Any:
    """Return a column's values without the missing ones: None, NaN, NA, NaT, those that a mask hides. They are flat."""
    if hasattr(column, "dropna"):  # pandas
        return column.dropna()
    if hasattr(column, "drop_nulls"):  # polars
        present = column.drop_nulls()
        return present.drop_nans() if str(column.dtype).startswith("Float") else present
    if hasattr(column, "compressed"):  # numpy's masked arrays
        column = column.compressed()
    if getattr(getattr(column, "dtype", None), "kind", "O") != "O":
        flat = column.ravel()
        return flat[flat == flat] if column.dtype.kind == "f" else flat  # NaN alone differs from itself
    if hasattr(column, "ravel"):
        column = column.ravel()
    return [value for value in _listed(column) if not is_null(value)]


def is_null(value: Any) -> bool:
    """Whether a value is missing: None, NaN, pandas' NA or NaT."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float) and value != value


def _type_name(column: Any) -> str:
    dtype = getattr(column, "dtype", None)
    if dtype is None or str(dtype) == "object":
        kinds = {type(value) for value in _listed(column)}
        names = {_OF_PYTHON.get(kind, kind.__name__.lower().removesuffix("_")) for kind in kinds}
        return "float64" if names == {"int64", "float64"} else ", ".join(sorted(names))
    name = str(dtype).lower().partition("(")[0].partition("[")[0]
    return "str" if name.startswith("<u") else name


def _own_categories(column: Any) -> Any:
    """Return the values that a categorical column's type lists; None where it lists none."""
    dtype = getattr(column, "dtype", None)
    if str(dtype).startswith("Categorical"):  # polars', whose categories are those of all such columns
        return sorted(map(str, column.drop_nulls().unique().to_list()))
    return getattr(dtype, "categories", None)  # pandas', and polars' Enum


def _frame(name: str, column: Any, datatype: str, kind: str) -> Mapping[str, Any]:
    """Return what makes a column of a pandas frame again of its values. :raises SpecError: nothing does."""
    if not hasattr(column, "isna"):
        return {}
    dtype = str(column.dtype)
    if dtype == "category":
        dates = {"of": str(column.dtype.categories.dtype)} if kind in _DATES else {}
        if dates.get("of") == "object":
            dates = {"of": kind}
        return {"dtype": dtype, **dates, **({"ordered": True} if column.dtype.ordered else {})}
    if dtype != "object":
        return {} if dtype == _PLAIN.get(datatype) else {"dtype": dtype}
    nulls = {
        "None" if value is None else "NA" if type(value).__name__ == "NAType" else "NaN"
        for value in column[column.isna()]
    }
    if len(nulls) > 1:
        raise SpecError(
            f"column {name!r} has missing values of several kinds, {' and '.join(sorted(nulls))}, which requests do not tell "
            f"apart: make them one, frame[{name!r}] = frame[{name!r}].where(frame[{name!r}].notna(), None)"
        )
    return {"dtype": dtype, **({"null": nulls.pop()} if nulls else {})}


def _least(column: Any) -> Any:
    return _plain(column.min() if hasattr(column, "min") else min(column))


def _greatest(column: Any) -> Any:
    return _plain(column.max() if hasattr(column, "max") else max(column))


def _sorted(column: Any) -> Sequence[Any]:
    """Return the values, of which none is missing, in order: as an array or a list."""
    if getattr(getattr(column, "dtype", None), "kind", "") in tuple("biuf") and hasattr(column, "to_numpy"):
        column = column.to_numpy()  # of pandas' own numbers
    if hasattr(column, "compressed") or not hasattr(column, "argsort") or hasattr(column, "isna"):
        return sorted(_listed(column))
    return cast("Sequence[Any]", column[column.argsort()])


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


def _requested(column: Any, rows: int | None = None) -> list[Any]:
    """Return a column, or its first rows, as a request has it: null where a value is missing, dates as text."""

    def held(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return list(map(held, value))
        if is_null(value):
            return None
        return value if isinstance(value, bool | int | float | str) else str(value)

    return list(map(held, _listed(column, rows)))


def _listed(column: Any, rows: int | None = None) -> list[Any]:
    """Return a column, or its first rows, as Python's own values."""
    if rows is not None:
        column = column.head(rows) if hasattr(column, "head") else column[:rows]
    for word in ("tolist", "to_list"):
        if hasattr(column, word):
            listed: list[Any] = getattr(column, word)()
            return listed
    return list(map(_plain, column))
