"""One column of a model: a tensor of its graph, its allowed values, and the conversion from JSON.

Names of data types are those of the Open Inference Protocol
(https://github.com/kserve/open-inference-protocol).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np  # noqa: TID253 - the server cannot do without; nothing that Airflow parses imports it

from muster_serving.errors import ModelError, PredictionError, RequestError

_INTEGERS: dict[str, Any] = {
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
}
_FLOATS: dict[str, Any] = {"FP32": np.float32, "FP64": np.float64}
DATATYPES: dict[str, Any] = {"BOOL": np.bool_, **_INTEGERS, **_FLOATS, "BYTES": np.object_}

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
    :param codes: allowed values, and the graph's value for each; None allows all.
    :param fallback: the graph's value for any other value; None refuses it.
    """

    name: str
    datatype: str
    tail: tuple[int, ...]
    least: float
    greatest: float
    codes: Mapping[Any, int] | None
    fallback: int | None
    accepted: frozenset[type]
    dtype: Any

    @classmethod
    def parse(cls, where: str, entry: Any) -> Column:
        """Read one entry of ``signature.json``.

        :raises ModelError: an unknown key, or a wrong type or value.
        """
        known = {"name", "datatype", "shape", "min", "max", "categories", "fallback"}
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
        least, greatest = _range(where, entry, datatype)
        codes, fallback = _codes(where, entry, datatype)
        as_index = datatype == "BYTES" and codes is not None
        return cls(
            name=name,
            datatype=datatype,
            tail=_tail(where, entry.get("shape", [-1])),
            least=least,
            greatest=greatest,
            codes=codes,
            fallback=fallback,
            accepted=_accepted(datatype),
            dtype=np.int64 if as_index else DATATYPES[datatype],
        )

    @property
    def expects(self) -> str:
        """The allowed values, for error messages."""
        if self.codes is not None:
            shown = ", ".join(str(value) for value in list(self.codes)[:12])
            return f"one of {shown}{', …' if len(self.codes) > 12 else ''}"
        lower, upper = _bounds(self.datatype)
        if (self.least, self.greatest) == (lower, upper):
            return "finite numbers" if self.datatype in _FLOATS else f"{self.datatype} values"
        if self.greatest == upper:
            return f"{self.least:g} or more"
        return f"{self.greatest:g} or less" if self.least == lower else f"{self.least:g} to {self.greatest:g}"

    @property
    def graph_datatype(self) -> str:
        """The data type of the graph's own tensor: a text with categories becomes an index."""
        return "INT64" if self.datatype == "BYTES" and self.codes is not None else self.datatype

    @property
    def takes_arrays(self) -> bool:
        """Whether :meth:`array` also takes an array: only for plain numbers, whose range it checks at once."""
        return self.codes is None and self.datatype not in ("BYTES", "BOOL")

    def metadata(self) -> dict[str, Any]:
        """Return the column as a tensor of the protocol's model metadata."""
        return {"name": self.name, "datatype": self.datatype, "shape": [-1, *self.tail]}

    def value(self, value: Any) -> Any:
        """Return the graph's value for one JSON value.

        :raises RequestError: it has another type, or is not finite, out of range or no category.
        """
        if type(value) in self.accepted:
            codes = self.codes
            if codes is not None:
                code = codes.get(value, self.fallback)
                return self._encode([value])[0] if code is None else code
            if self.datatype in ("BYTES", "BOOL") or self.least <= value <= self.greatest:
                return value
        (typed,) = self._typed([value])
        if typed is not value:
            return self.value(typed)
        self._check_range([value])
        return value

    def array(self, values: list[Any] | Array) -> Array:
        """Return the graph's tensor, of one dimension, for a list of JSON values.

        :param values: a list, or an array of the column's data type where it :attr:`takes_arrays`.
        :raises RequestError: as :meth:`value`, with the position of the first wrong value.
        """
        if not isinstance(values, list):
            good = (values >= self.least) & (values <= self.greatest)  # NaN compares false
            if not good.all():
                self._check_range(values.tolist())
            return values.astype(self.dtype, copy=False)
        values = self._typed(values)
        if self.codes is not None:
            return np.array(self._encode(values), dtype=self.dtype)
        if self.datatype not in ("BYTES", "BOOL"):
            self._check_range(values)
        return np.array(values, dtype=self.dtype)

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
            good = array.dtype.kind in "OU" and all(type(value) is str for value in array.ravel().tolist())
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
            values = [int(v) if type(v) is float and v.is_integer() else v for v in values]
        for row, value in enumerate(values):
            if type(value) not in self.accepted:
                raise RequestError(
                    f"input {self.name!r}: found {_shown(value)} at position {row}, expected {self.datatype}"
                )
        return values

    def _encode(self, values: list[Any]) -> list[int]:
        codes, fallback = self.codes or {}, self.fallback
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
    # 0.1 as FP32 is more than 0.1: round the bound as the type does, so that the bound itself is allowed
    held = _FLOATS[datatype]
    return min(float(least), float(held(least))), max(float(greatest), float(held(greatest)))


def _codes(
    where: str, entry: Mapping[str, Any], datatype: str
) -> tuple[Mapping[Any, int] | None, int | None]:
    categories = entry.get("categories")
    if categories is None:
        need("fallback" not in entry, f"{where}: a fallback needs categories")
        return None, None
    wanted = str if datatype == "BYTES" else int
    need(datatype == "BYTES" or datatype in _INTEGERS, f"{where}: only BYTES and integers have categories")
    good = (
        isinstance(categories, list)
        and bool(categories)
        and all(type(value) is wanted for value in categories)
    )
    need(good, f"{where}: categories must be a list of one or more values of {datatype}")
    lower, upper = _bounds(datatype)
    for value in () if wanted is str else categories:
        need(lower <= value <= upper, f"{where}: category {value!r:.40} is no {datatype}")
    need(len(set(categories)) == len(categories), f"{where}: a category is there twice")
    codes = {value: index if wanted is str else value for index, value in enumerate(categories)}
    if "fallback" not in entry:
        return codes, None
    need(entry["fallback"] in codes, f"{where}: fallback {entry['fallback']!r:.40} is none of the categories")
    return codes, codes[entry["fallback"]]


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
