"""Inputs as the table that a library of models takes: a matrix, or a frame with the names that the model was fitted on."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from datetime import date
from typing import Any

import numpy as np  # noqa: TID253 - the model has it

from muster_serving.column import DATATYPES, Array, Column, is_null
from muster_serving.errors import ModelError, PredictionError, RequestError
from muster_serving.signature import ModelSignature

Places = dict[Any, float]


def categorical(signature: ModelSignature) -> Collection[str]:
    """Return the inputs that were categorical columns of a frame."""
    return [name for name, column in signature.inputs.items() if column.frame.get("dtype") == "category"]


def numeric(
    signature: ModelSignature, *, what: str, encoded: Collection[str] = ()
) -> Sequence[tuple[str, Places | None]]:
    """Return each input's name, and of a text, or another category that the model was trained on by its place, the places.

    :param encoded: the inputs whose categories the library had by their places.
    :raises ModelError: an input is a text without categories, or may have been values or places in training.
    """
    for name, column in signature.inputs.items():
        if column.datatype == "BYTES" and column.categories is None:
            raise ModelError(
                f"input {name!r} is text, and {what} takes numbers: give it categories, or write predict.py"
            )
    signature.check_categories(what, encoded=encoded)
    return [
        (n, _places(c) if c.datatype == "BYTES" or n in encoded else None)
        for n, c in signature.inputs.items()
    ]


def _places(column: Column) -> Places:
    return {value: place for place, value in enumerate(column.categories or ())}


def placed(name: str, array: Array, places: Places | None) -> Array:
    """Return the values' places in their categories, where they have any; null is NaN.

    :raises RequestError: a value is none of the categories.
    """
    if places is None:
        return array
    values = array.ravel().tolist()
    try:
        found = [math.nan if is_null(value) else places[value] for value in values]
    except KeyError as error:
        shown = ", ".join(map(str, list(places)[:12]))
        raise RequestError(
            f"input {name!r}: found {error.args[0]!r:.60}, expected one of {shown}: the model knows no other"
        ) from None
    return np.array(found).reshape(array.shape)


def matrix(inputs: dict[str, Array], columns: Sequence[tuple[str, Places | None]], dtype: Any) -> Array:
    """Return the inputs side by side as one matrix; a category as its place where it has one, null as NaN.

    :raises RequestError: a value has no place.
    """
    if len(columns) == 1 and columns[0][1] is None:
        array = inputs[columns[0][0]]
        return np.ascontiguousarray(array.reshape(len(array), -1), dtype)
    parts = []
    for name, places in columns:
        array = placed(name, inputs[name], places)
        parts.append(array.reshape(len(array), -1))
    whole = np.empty((len(parts[0]), sum(part.shape[1] for part in parts)), dtype)
    at = 0
    for part in parts:
        whole[:, at : at + part.shape[1]] = part
        at += part.shape[1]
    return whole


def framing(signature: ModelSignature, names: Sequence[str]) -> Callable[[dict[str, Array]], Any]:
    """Return what makes a pandas frame of inputs, whose columns have the types that the training rows' frame had."""
    import pandas as pd

    makers = {name: _making(signature.inputs[name]) for name in names}

    def frame(inputs: dict[str, Array]) -> Any:
        columns = {name: make(inputs[name]) if make else inputs[name] for name, make in makers.items()}
        return pd.DataFrame(columns, copy=False)

    return frame


def _making(column: Column) -> Callable[[Array], Any] | None:
    """Return what makes a column of an array; None where the array is one."""
    import pandas as pd

    dtype = column.frame.get("dtype")
    if dtype is None:
        return (
            (lambda array: array.astype(np.float64))
            if column.marks_nulls and column.datatype != "BYTES"
            else None
        )
    if dtype == "category":
        known = pd.Index(column.categories)
        if (of := column.frame.get("of", "")) == "date":
            own = pd.Index([date.fromisoformat(each) for each in known], dtype=object)
        elif of:
            own = pd.DatetimeIndex(known).astype(of)
        else:
            own = known if column.datatype == "BYTES" else known.astype(DATATYPES[column.datatype])
        kind = pd.CategoricalDtype(own, bool(column.frame.get("ordered")))
        return lambda array: pd.Categorical.from_codes(known.get_indexer(array), dtype=kind)
    if dtype != "object":
        return lambda array: pd.array(_marked(array), dtype=dtype)
    null = {"NaN": math.nan, "NA": pd.NA}.get(column.frame.get("null", ""))

    def objects(array: Array) -> Any:
        values = _marked(array).astype(object)
        if null is not None:
            values[values == None] = null  # noqa: E711 - of each object
        return pd.Series(values, dtype=object)

    return objects


def _marked(array: Array) -> Array:
    """Return an array that has None for null, which NaN is not everywhere."""
    if array.dtype.kind != "f" or not (nulls := np.isnan(array)).any():
        return array
    marked = array.astype(object)
    marked[nulls] = None
    return marked


def outputs(signature: ModelSignature, answers: Sequence[Array], *, what: str) -> dict[str, Array]:
    """Give a model's answers the names of the signature's outputs, in order.

    A model of two classes answers a column for each; where the signature has one value, it is that of the second class.

    :raises PredictionError: there are fewer answers than outputs.
    """
    named = {}
    if len(signature.outputs) > len(answers):
        raise PredictionError(
            f"{what} answers {len(answers)} arrays, the signature has {len(signature.outputs)} outputs"
        )
    for (name, column), answer in zip(signature.outputs.items(), answers, strict=False):
        array = np.asarray(answer)
        if not column.tail and array.ndim == 2:
            array = array[:, -1] if array.shape[1] <= 2 else array
        named[name] = array
    return named
