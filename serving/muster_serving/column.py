"""One column of a model: a tensor of its graph, its allowed values, and the conversion from JSON.

Names of data types are those of the Open Inference Protocol
(https://github.com/kserve/open-inference-protocol).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np  # noqa: TID253 - the server cannot do without; nothing that Airflow parses imports it

from muster_serving.errors import ModelError, PredictionError, RequestError, refuse_half_pairs

_INTEGERS: dict[str, Any] = {
    f"{sign}INT{bits}": getattr(np, f"{sign.lower()}int{bits}")
    for sign in ("", "U")
    for bits in (8, 16, 32, 64)
}
_FLOATS: dict[str, Any] = {"FP32": np.float32, "FP64": np.float64}
DATATYPES: dict[str, Any] = {"BOOL": np.bool_, **_INTEGERS, **_FLOATS, "BYTES": np.object_}

_FEWEST_AMBIGUOUS = 1 << 53

Array = np.ndarray[Any, Any]


def _bounds(datatype: str) -> tuple[float, float]:
    """Return the least and the greatest finite value of a data type."""
    if datatype in _INTEGERS:
        limits = np.iinfo(_INTEGERS[datatype])
        return int(limits.min), int(limits.max)
    if datatype in _FLOATS:
        greatest = float(np.finfo(_FLOATS[datatype]).max)
        return -greatest, greatest
    return -math.inf, math.inf


def _accepted(datatype: str) -> frozenset[type]:
    """Return the Python types that JSON gives for valid values of a data type; a bool is never a number."""
    if datatype == "BOOL":
        return frozenset({bool})
    if datatype == "BYTES":
        return frozenset({str})
    return frozenset({int, float}) if datatype in _FLOATS else frozenset({int})


@dataclass(frozen=True)
class Column:
    """One tensor of the graph, by name.

    :param tail: the dimensions after the batch; ``()`` for a plain column.
    :param codes: allowed values, and the graph's value for each; None allows all between `least` and `greatest`.
    :param fallback: the graph's value for any other value, and for null; None refuses it.
    :param nullable: whether null is allowed; of FP32 and FP64 it is NaN.
    :param usual: the least and the greatest value of the training rows, `categories` all of them, as far as either is
        recorded: a value outside is counted, and only `codes` and bounds refuse it.
    :param frame: how the training rows' frame had the column (:mod:`muster_serving.predictors.frame`).
    """

    name: str
    datatype: str
    tail: tuple[int, ...]
    least: float
    greatest: float
    codes: Mapping[Any, Any] | None
    fallback: Any
    accepted: frozenset[type]
    dtype: Any
    nullable: bool = False
    usual: tuple[float, float] | None = None
    categories: tuple[Any, ...] | None = None
    frame: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, where: str, entry: Any, *, of: int = 1, output: bool = False) -> Column:
        """Read one entry of ``signature.json``.

        :param of: the format of the file: in the first, ranges and categories of inputs are closed.
        :raises ModelError: an unknown key, or a wrong type or value.
        """
        known = {"name", "datatype", "shape", "min", "max"}
        known |= {"categories", "fallback"} if of == 1 or not output else set()
        known |= {"nullable", "closed", "frame"} if of > 1 and not output else set()
        need(isinstance(entry, dict), f"{where}: expected an object, found {entry!r:.60}")
        unknown = sorted(set(entry) - known)
        need(
            not unknown,
            f"{where}: unknown key {', '.join(unknown)!r:.60}; known are {', '.join(sorted(known))}",
        )
        name, datatype = entry.get("name"), entry.get("datatype")
        need(isinstance(name, str) and 0 < len(name) <= 256, f"{where}: needs a name, found {name!r:.60}")
        where = f"{where} {name!r}"
        need(
            isinstance(datatype, str) and datatype in DATATYPES,
            f"{where}: datatype {datatype!r:.40}; known are {', '.join(DATATYPES)}",
        )
        bounds = _range(where, entry, datatype)
        codes, fallback = _codes(where, entry, datatype, of)
        nullable, closed = _flag(where, entry, "nullable"), _flag(where, entry, "closed")
        open_ = of > 1 and not output and not closed
        least, greatest = _bounds(datatype) if open_ else bounds
        column = cls(
            name=name,
            datatype=datatype,
            tail=_tail(where, entry.get("shape", [-1])),
            least=least,
            greatest=greatest,
            codes=None if open_ and fallback is None else codes,
            fallback=fallback,
            accepted=_accepted(datatype),
            dtype=DATATYPES[datatype],
            nullable=nullable,
            usual=bounds if "min" in entry or "max" in entry else None,
            categories=None if codes is None else tuple(codes),
            frame=_frame(where, entry),
        )
        if column.is_coded:
            return replace(column, dtype=np.int64)
        return replace(column, dtype=np.object_) if column.marks_nulls else column

    def closed(self) -> Column:
        """Return it as a graph takes it that is given a text's place in the categories: any other text is refused."""
        if self.datatype != "BYTES" or self.categories is None:
            return self
        codes = {text: place for place, text in enumerate(self.categories)}
        return replace(self, codes=codes, dtype=np.int64)

    @property
    def is_coded(self) -> bool:
        """Whether a text arrives as its place in the categories."""
        return self.datatype == "BYTES" and self.codes is not None

    @property
    def null(self) -> Any:
        """What :meth:`array` has for null."""
        if self.fallback is not None:
            return self.fallback
        if self.datatype in _FLOATS:
            return math.nan
        return -1 if self.is_coded else None

    @property
    def marks_nulls(self) -> bool:
        """Whether arrays hold objects, of which None is null."""
        return self.nullable and self.null is None

    @property
    def expects(self) -> str:
        """The allowed values, for error messages."""
        return f"{self._expects()}{' or null' * self.nullable}"

    def _expects(self) -> str:
        if self.codes is not None:
            shown = ", ".join(str(value) for value in list(self.codes)[:12])
            return f"one of {shown}{', …' if len(self.codes) > 12 else ''}"
        lower, upper = _bounds(self.datatype)
        if (self.least, self.greatest) == (lower, upper):
            return "finite numbers" if self.datatype in _FLOATS else f"{self.datatype} values"
        least, greatest = (f"{b:g}" if type(b) is float else str(b) for b in (self.least, self.greatest))
        if self.greatest == upper:
            return f"{least} or more"
        return f"{greatest} or less" if self.least == lower else f"{least} to {greatest}"

    @property
    def graph_datatype(self) -> str:
        """The data type of the graph's own tensor: a text with categories becomes an index."""
        return "INT64" if self.is_coded else self.datatype

    @property
    def takes_arrays(self) -> bool:
        """Whether :meth:`array` also takes an array: only for plain numbers, whose range it checks at once."""
        return self.codes is None and self.datatype not in ("BYTES", "BOOL")

    def metadata(self) -> dict[str, Any]:
        """Return the column as a tensor of the protocol's model metadata."""
        return {"name": self.name, "datatype": self.datatype, "shape": [-1, *self.tail]}

    @property
    def kind_outside(self) -> str:
        """What a value may be outside of, ``range`` or ``category``; empty where none is recorded, or it is refused."""
        if self.categories is not None:
            return "" if self.codes is not None and self.fallback is None else "category"
        return "" if self.usual in (None, (self.least, self.greatest)) else "range"

    def is_outside(self, values: list[Any] | Array) -> bool:
        """Whether a value is outside what is recorded of the training rows; null never is.

        :param values: flat values of JSON that are allowed, or an array.
        """
        if self.usual is not None:
            least, greatest = self.usual
            if not isinstance(values, list):
                return bool(((values < least) | (values > greatest)).any())
            return any(v is not None and (v < least or v > greatest) for v in values)
        listed = values if isinstance(values, list) else np.unique(values).tolist()
        known = self._known
        return not known.issuperset(listed) and any(
            not is_null(value) and self._key(value) not in known for value in listed
        )

    @cached_property
    def _known(self) -> frozenset[Any]:
        return frozenset(self.categories or ())

    def value(self, value: Any) -> Any:
        """Return the graph's value for one JSON value.

        :raises RequestError: it has another type, or is not finite, out of range or no category.
        """
        if type(value) in self.accepted:
            if self.codes is None and self.datatype != "BYTES":
                if self.datatype == "BOOL" or self.least <= value <= self.greatest:
                    return value
            elif self.codes is not None and value in self.codes:
                return self.codes[value]
        return self.array([value])[0]

    def array(self, values: list[Any] | Array) -> Array:
        """Return the graph's tensor, of one dimension, for a list of JSON values.

        :param values: a list, or an array of the column's data type where it :attr:`takes_arrays`.
        :raises RequestError: as :meth:`value`, with the position of the first wrong value.
        """
        if not isinstance(values, list):
            good = (values >= self.least) & (values <= self.greatest)  # NaN compares false
            if not good.all() and not (self.nullable and (good | (values != values)).all()):
                return self.array(values.tolist())
            return values.astype(self.dtype, copy=False)
        nulls: list[bool] = []
        if self.nullable and any(nulls := [is_null(value) for value in values]):
            values = [self.example if null else value for value, null in zip(values, nulls, strict=True)]
        values = self._typed(values)
        if self.codes is not None:
            values = self._encode(values)
        elif self.datatype == "BYTES":
            refuse_half_pairs(values, f"input {self.name!r}")
        elif self.datatype != "BOOL":
            self._check_range(values)
        array = np.array(values, dtype=self.dtype)
        if nulls:
            array[np.array(nulls)] = self.null
        return array

    @cached_property
    def example(self) -> Any:
        """A value that is allowed, the first of the categories where they are recorded."""
        if self.categories:
            return self.categories[0]
        if self.datatype == "BYTES":
            return "text"
        if self.datatype == "BOOL":
            return True
        least, greatest = self.usual or (self.least, self.greatest)
        if least <= 0 <= greatest:
            return 0
        return least if self.datatype in _FLOATS else math.ceil(least)

    def check_answer(self, array: Array, rows: int) -> None:
        """Raise PredictionError where an output is not what the signature promises."""
        if array.shape[:1] != (rows,) or array.ndim != 1 + len(self.tail):
            raise PredictionError(
                f"output {self.name!r}: the model answered shape {list(array.shape)}, expected {[rows, *self.tail]}"
            )
        if self.datatype in ("BYTES", "BOOL"):
            return
        if array.size == 1:
            value = array.item()
            good = self.least <= value <= self.greatest
        else:
            good = bool(array.min() >= self.least and array.max() <= self.greatest)  # NaN compares false
        if not good:
            raise PredictionError(
                f"output {self.name!r}: the model answered {_worst(array, self)}; expected {self.expects}"
            )

    def answer(self, given: Any, rows: int) -> Array:
        """Return an output of a predictor as the signature says.

        :raises PredictionError: it has another shape or type, or a value that the signature does not allow.
        """
        array: Array = np.asarray(given)
        if self.datatype == "BYTES":
            good = array.dtype.kind in "OU" and all(map(is_text, array.ravel().tolist()))
        else:
            good = array.dtype.type is self.dtype or np.can_cast(array.dtype, self.dtype, "same_kind")
        if not good:
            found = array.dtype if array.dtype.kind != "O" else "objects"
            raise PredictionError(
                f"output {self.name!r}: the model answered {found}, the signature says {self.datatype}"
            )
        self.check_answer(array, rows)
        return array.astype(self.dtype, copy=False)

    def _typed(self, values: list[Any]) -> list[Any]:
        """Check the types of JSON values; a whole number counts as an integer, also as 7.0."""
        if {*map(type, values)} <= self.accepted:
            return values
        if int in self.accepted and float not in self.accepted:
            values = [int(v) if type(v) is float and _is_whole(v) else v for v in values]
        for row, value in enumerate(values):
            if type(value) not in self.accepted:
                expected = self.expects if self.nullable else self.datatype
                raise RequestError(
                    f"input {self.name!r}: found {_shown(value)} at position {row}, expected {expected}"
                )
        return values

    def _key(self, value: Any) -> Any:
        """Return a value as the categories have it: of FP32, 0.1 is another number."""
        return float(np.float32(value)) if self.datatype == "FP32" else value

    def _encode(self, values: list[Any]) -> list[Any]:
        codes, fallback = self.codes or {}, self.fallback
        if self.datatype in _FLOATS:
            values = [self._key(value) for value in values]
        if fallback is not None:
            return [codes.get(value, fallback) for value in values]
        try:
            return [codes[value] for value in values]
        except KeyError as error:
            raise RequestError(
                f"input {self.name!r}: found {_shown(error.args[0])}, expected {self.expects}"
            ) from None

    def _check_range(self, values: list[Any]) -> None:
        # The sum comes last: adding a float to an integer too large for a float raises an error.
        if self.least <= min(values) and max(values) <= self.greatest and not math.isnan(sum(values)):
            return
        for row, value in enumerate(values):
            if not self.least <= value <= self.greatest:  # NaN compares false
                raise RequestError(
                    f"input {self.name!r}: found {_shown(value)} at position {row}, expected {self.expects}"
                )


def _tail(where: str, shape: Any) -> tuple[int, ...]:
    good = isinstance(shape, list) and shape[:1] == [-1] and all(type(n) is int and n > 0 for n in shape[1:])
    need(
        good,
        f"{where}: shape {shape!r:.60}; expected -1 for the batch, then fixed sizes, such as [-1] or [-1, 28]",
    )
    return tuple(shape[1:])


def _range(where: str, entry: Mapping[str, Any], datatype: str) -> tuple[float, float]:
    lower, upper = _bounds(datatype)
    least, greatest = entry.get("min", lower), entry.get("max", upper)
    if "min" in entry or "max" in entry:
        need(datatype in _INTEGERS or datatype in _FLOATS, f"{where}: only numbers have min and max")
    for bound in (least, greatest):
        need(
            type(bound) in (int, float) and not math.isnan(bound),
            f"{where}: bound {bound!r:.40} is no number",
        )
    need(
        lower <= least <= greatest <= upper,
        f"{where}: min {least!r} and max {greatest!r} are no range of {datatype}",
    )
    if datatype not in _FLOATS:
        return least, greatest
    if datatype == "FP64":
        return float(least), float(greatest)
    return max(_rounding(least, -math.inf), lower), min(_rounding(greatest, math.inf), upper)


def _rounding(bound: float, toward: float) -> float:
    """Return the last number that FP32 rounds to `bound`, so that 0.1 is allowed beside 0.1 as FP32, which is more."""
    held = np.float32(bound)
    with np.errstate(over="ignore"):
        beyond = np.nextafter(held, np.float32(toward))
    return (float(held) + float(beyond)) / 2


def _flag(where: str, entry: Mapping[str, Any], key: str) -> bool:
    flag = entry.get(key, False)
    need(type(flag) is bool, f"{where}: {key} is {flag!r:.40}, need true or false")
    return bool(flag)


def _frame(where: str, entry: Mapping[str, Any]) -> Mapping[str, Any]:
    frame = entry.get("frame", {})
    need(
        isinstance(frame, dict) and set(frame) <= {"dtype", "of", "ordered", "null"},
        f"{where}: frame is {frame!r:.60}, need an object with dtype, of, ordered or null",
    )
    return dict(frame)


def _codes(
    where: str, entry: Mapping[str, Any], datatype: str, of: int
) -> tuple[Mapping[Any, Any] | None, Any]:
    categories = entry.get("categories")
    if categories is None:
        need("fallback" not in entry, f"{where}: a fallback needs categories")
        return None, None
    need(
        of > 1 or datatype == "BYTES" or datatype in _INTEGERS,
        f"{where}: only BYTES and integers have categories in format 1",
    )
    wanted = _accepted(datatype)
    good = (
        isinstance(categories, list)
        and bool(categories)
        and all(type(value) in wanted for value in categories)
    )
    need(good, f"{where}: categories must be a list of one or more values of {datatype}")
    lower, upper = _bounds(datatype)
    for value in () if datatype in ("BYTES", "BOOL") else categories:
        need(lower <= value <= upper, f"{where}: category {value!r:.40} is no {datatype}")
    need(len(set(categories)) == len(categories), f"{where}: a category is there twice")
    if datatype == "FP32":
        categories = [float(np.float32(value)) for value in categories]
    codes = {value: place if datatype == "BYTES" else value for place, value in enumerate(categories)}
    if "fallback" not in entry:
        return codes, None
    fallback = entry["fallback"]
    good = type(fallback) in wanted and fallback in codes
    need(good, f"{where}: fallback {fallback!r:.40} is none of the categories")
    return codes, codes[fallback]


def is_null(value: Any) -> bool:
    """Whether a value of a request is null; NaN is the null of clients whose floats have no other."""
    return value is None or value != value


def is_text(value: Any) -> bool:
    """Whether a value is text that can be sent: UTF-8 has no half of a pair of surrogates."""
    return type(value) is str and (value.isascii() or not any("\ud800" <= each <= "\udfff" for each in value))


def _is_whole(value: float) -> bool:
    """Whether a float is one whole number: from 2**53 on it stands for several, of which some are out of range."""
    return value.is_integer() and abs(value) < _FEWEST_AMBIGUOUS


def need(holds: bool, message: str) -> None:
    """Raise ModelError with `message` unless `holds` is true."""
    if not holds:
        raise ModelError(message)


def _shown(value: Any) -> str:
    return f"{value!r:.60}" if type(value) is not str else f"text {value!r:.60}"


def _worst(array: Array, column: Column) -> str:
    """Return the first value that the signature does not allow."""
    flat = array.ravel()
    good = (flat >= column.least) & (flat <= column.greatest)
    return f"{flat[~good][0].item()!r}"
