"""Inputs as the table that a library of models takes: a matrix, or a frame with the names that the model was fitted on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np  # noqa: TID253 - the model has it

from muster_serving.column import Array
from muster_serving.errors import ModelError, PredictionError
from muster_serving.signature import Signature


def numeric(signature: Signature, *, what: str) -> Sequence[tuple[str, dict[Any, int] | None]]:
    """Return each input's name, and of a text with categories the place of each.

    :raises ModelError: an input is a text without categories.
    """
    for name, column in signature.inputs.items():
        if column.datatype == "BYTES" and column.codes is None:
            raise ModelError(
                f"input {name!r} is text, and {what} takes numbers: give it categories, or write predict.py"
            )
    return [
        (n, dict(c.codes) if c.datatype == "BYTES" and c.codes else None) for n, c in signature.inputs.items()
    ]


def matrix(
    inputs: dict[str, Array], columns: Sequence[tuple[str, dict[Any, int] | None]], dtype: Any
) -> Array:
    """Return the inputs side by side as one matrix; a text with categories as its place in them."""
    if len(columns) == 1 and columns[0][1] is None:
        array = inputs[columns[0][0]]
        return np.ascontiguousarray(array.reshape(len(array), -1), dtype)
    parts = []
    for name, codes in columns:
        array = inputs[name]
        if codes is not None:
            array = np.array([codes[text] for text in array.ravel().tolist()]).reshape(array.shape)
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
