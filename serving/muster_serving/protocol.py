"""The wire: bodies of the Open Inference Protocol v2 and of v1 to tensors, and answers back.

Pure functions of bytes, so that every server speaks the same. Sources:
https://github.com/kserve/open-inference-protocol (v2, JSON form; the binary tensor extension is
refused) and https://kserve.github.io/website/docs/concepts/architecture/data-plane/v1-protocol (v1).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

import orjson

from muster_serving.column import Column
from muster_serving.errors import RequestError
from muster_serving.predictor import Predictor
from muster_serving.signature import Signature

_HALF_PAIR = re.compile("[\ud800-\udfff]")  # of surrogates: what lenient JSON lets in and no answer can hold


def infer_v2(predictor: Predictor, body: bytes, *, name: str, revision: str) -> bytes:
    """Answer ``POST /v2/models/NAME/infer``.

    :raises RequestError: not JSON, or not what the signature takes; the message names the field.
    :raises PredictionError: the model failed.
    """
    document = _document(body)
    signature = predictor.signature
    columns, rows = _tensors(signature, document.get("inputs"))
    wanted = _wanted(signature, document.get("outputs"))
    answer = predictor.predict(columns, rows)
    outputs = [
        {
            "name": column.name,
            "datatype": column.datatype,
            "shape": list(answer[column.name].shape),
            "data": answer[column.name].ravel().tolist(),
        }
        for column in wanted
    ]
    response = {"model_name": name, "model_version": revision, "outputs": outputs}
    identity = document.get("id")
    if identity is not None:
        if type(identity) is not str or _HALF_PAIR.search(identity):
            raise RequestError(f"id: found {identity!r:.60}, expected text")
        response["id"] = identity
    return orjson.dumps(response)


def predict_v1(predictor: Predictor, body: bytes) -> bytes:
    """Answer ``POST /v1/models/NAME:predict``.

    ``{"instances": [{"hour": 13}, …]}`` is answered row by row as ``{"predictions": […]}``,
    ``{"inputs": {"hour": [13, …]}}`` column by column as ``{"outputs": {…}}``. A row is the bare
    value where the model has one output, else an object.

    :raises RequestError: as :func:`infer_v2`.
    """
    document = _document(body)
    if ("instances" in document) == ("inputs" in document):
        raise RequestError('expected {"instances": [{…}]} or {"inputs": {…}}, one of the two')
    by_row = "instances" in document
    columns = from_rows(document["instances"]) if by_row else document["inputs"]
    answer = predict_columns(predictor, columns)
    if not by_row:
        return orjson.dumps({"outputs": answer})
    if len(answer) == 1:
        return orjson.dumps({"predictions": next(iter(answer.values()))})
    rows_out = zip(*answer.values(), strict=True)
    return orjson.dumps({"predictions": [dict(zip(answer, row, strict=True)) for row in rows_out]})


def predict_columns(predictor: Predictor, columns: Any) -> dict[str, list[Any]]:
    """Predict for an object of JSON lists by input, all of one length; return lists by output.

    :raises RequestError: it is not what the signature takes; the message names the field.
    :raises PredictionError: the model failed.
    """
    if type(columns) is not dict:
        raise RequestError(f"inputs: found {_kind(columns)}, expected an object of lists by name")
    predictor.signature.check_names(list(columns))
    flat, rows = _columns(predictor.signature, columns)
    return {name: array.tolist() for name, array in predictor.predict(flat, rows).items()}


def from_rows(rows: Any) -> dict[str, list[Any]]:
    """Turn v1's rows into columns. :raises RequestError: not rows, or of different names."""
    if type(rows) is not list or not rows:
        raise RequestError(f"instances: found {_kind(rows)}, expected a list of one or more objects")
    first = rows[0]
    for i, row in enumerate(rows):
        if type(row) is not dict:
            raise RequestError(f"instances[{i}]: found {_kind(row)}, expected an object of values by name")
        if row.keys() != first.keys():
            odd = min(row.keys() ^ first.keys())
            raise RequestError(
                f"instances[{i}]: {odd!r:.80} is not in every row; all rows need the same names"
            )
    return {name: [row[name] for row in rows] for name in first}


def error(message: str) -> bytes:
    """Return the body of a refusal, the same in both protocols."""
    return orjson.dumps({"error": message})


def _document(body: bytes) -> dict[str, Any]:
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        document = _lenient(body)
    if type(document) is not dict:
        raise RequestError(f"the body is {_kind(document)}, expected a JSON object")
    return document


def _lenient(body: bytes) -> Any:
    """Read what strict JSON refuses: with NaN and Infinity let in, the field that holds one can be named."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is not JSON: {str(error) or type(error).__name__:.200}") from None


def _tensors(signature: Signature, tensors: Any) -> tuple[dict[str, list[Any]], int]:
    """Read the v2 list of tensors: a flat list of values for each input, and the number of rows."""
    if type(tensors) is not list:
        raise RequestError(f"inputs: found {_kind(tensors)}, expected a list of tensors")
    columns: dict[str, list[Any]] = {}
    rows = -1
    for tensor in tensors:
        if type(tensor) is not dict:
            raise RequestError(
                f"inputs: found {_kind(tensor)}, expected tensors with name, shape, datatype and data"
            )
        name = tensor.get("name")
        column = signature.inputs.get(name) if type(name) is str else None
        if column is None or name in columns:
            raise _misnamed(signature, name, seen=column is not None)
        columns[column.name], length = _tensor(column, tensor)
        if rows == -1:
            rows = length
            signature.check_rows(rows)
        elif rows != length:
            raise _ragged(column.name, length, rows)
    if len(columns) != len(signature.inputs):
        signature.check_names(list(columns))
    return columns, rows


def _tensor(column: Column, tensor: Mapping[str, Any]) -> tuple[list[Any], int]:
    """Return one tensor's values, flat, and its number of rows."""
    if tensor.get("datatype") != column.datatype:
        raise RequestError(
            f"input {column.name!r}: datatype is {tensor.get('datatype')!r:.40}, expected {column.datatype}"
        )
    data, shape = tensor.get("data"), tensor.get("shape")
    if type(data) is not list:
        raise RequestError(f"input {column.name!r}: data is {_kind(data)}, expected a JSON list of values")
    if not column.tail and shape == [len(data)] and type(shape[0]) is int:
        return data, len(data)
    return _shaped(column, data, shape)


def _shaped(column: Column, data: list[Any], shape: Any) -> tuple[list[Any], int]:
    """Read a tensor of several dimensions, or say what is wrong with its shape."""
    sizes = shape if type(shape) is list and all(type(size) is int and size >= 0 for size in shape) else []
    if not sizes or sizes[1:] != list(column.tail):
        expected = [-1, *column.tail]
        raise RequestError(
            f"input {column.name!r}: shape is {shape!r:.60}, expected {expected}, -1 for any number of rows"
        )
    flat, count = _flat(column, data, sizes), math.prod(sizes)
    if len(flat) != count:
        raise RequestError(
            f"input {column.name!r}: shape {shape!r:.60} needs {count} values, found {len(flat)}"
        )
    return flat, sizes[0]


def _flat(column: Column, data: list[Any], shape: list[int]) -> list[Any]:
    """Flatten data that is nested as its shape says; flat data stays as it is."""
    for depth, size in enumerate(shape[1:], start=1):
        if not data or type(data[0]) is not list:
            return data
        if not all(type(row) is list and len(row) == size for row in data):
            raise RequestError(
                f"input {column.name!r}: nested data does not have {size} values in dimension {depth}"
            )
        data = [value for row in data for value in row]
    return data


def _columns(signature: Signature, columns: Mapping[str, Any]) -> tuple[dict[str, list[Any]], int]:
    """Read v1's columns, whose shapes are those of their lists."""
    flat: dict[str, list[Any]] = {}
    rows = -1
    for name, values in columns.items():
        if type(values) is not list:
            raise RequestError(f"input {name!r}: found {_kind(values)}, expected a list of values")
        if rows == -1:
            rows = len(values)
            signature.check_rows(rows)
        elif rows != len(values):
            raise _ragged(name, len(values), rows)
        column = signature.inputs[name]
        flat[name], _ = _shaped(column, values, [rows, *column.tail])
    return flat, rows


def _wanted(signature: Signature, outputs: Any) -> list[Column]:
    """Return the outputs that a v2 request asks for: all, unless it names some."""
    if outputs is None or outputs == []:
        return list(signature.outputs.values())
    wanted: dict[str, Column] = {}
    for output in outputs if type(outputs) is list else [outputs]:
        name = output.get("name") if type(output) is dict else output
        if type(name) is not str or name not in signature.outputs:
            raise RequestError(
                f"output {name!r:.80} is unknown; this model answers {', '.join(signature.outputs)}"
            )
        wanted[name] = signature.outputs[name]
    return list(wanted.values())


def _misnamed(signature: Signature, name: Any, *, seen: bool) -> RequestError:
    if seen:
        return RequestError(f"input {name!r:.80} is there twice")
    return RequestError(f"input {name!r:.80} is unknown; this model takes {', '.join(signature.inputs)}")


def _ragged(name: str, found: int, rows: int) -> RequestError:
    return RequestError(
        f"input {name!r} has {found} rows, the inputs before it have {rows}: all need the same"
    )


def _kind(value: Any) -> str:
    if value is None:
        return "nothing"
    kinds = {
        dict: "an object",
        list: "a list" if value else "an empty list",
        str: "text",
        bool: "true or false",
    }
    return kinds.get(type(value), "a number")
