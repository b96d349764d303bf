"""Inputs as the table that a library of models takes: a matrix, or a frame with the names that the model was fitted on."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np  # noqa: TID253 - the model has it

from muster_serving.column import Array, Column, is_null
from muster_serving.errors import ModelError, PredictionError, RequestError
from muster_serving.signature import Signature

Places = dict[Any, float]


def numeric(
    signature: Signature, *, what: str, encoded: Collection[str] = ()
) -> Sequence[tuple[str, Places | None]]:
    """Return each input's name, and of a text, or another category that the model was trained on by its place, the places.

    :param encoded: the inputs whose categories the library had by their places.
    :raises ModelError: an input is a text without categories.
    """
    for name, column in signature.inputs.items():
        if column.categories is None and (column.datatype == "BYTES" or name in encoded):
            raise ModelError(
                f"input {name!r} is text, and {what} takes numbers: give it categories, or write predict.py"
            )
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


def outputs(signature: Signature, answers: Sequence[Array], *, what: str) -> dict[str, Array]:
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
