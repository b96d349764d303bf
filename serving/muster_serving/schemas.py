"""JSON schemas of a model's requests and answers, made from its signature (https://json-schema.org/draft/2020-12).

A schema cannot require lists of equal length, so it describes tensors and columns of one row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from muster_serving.column import Column
from muster_serving.signature import ModelSignature

Schema = Mapping[str, Any]

TEXT: Schema = {"type": "string"}
_ANY: Schema = {"type": "object"}
_PARAMETERS: Schema = {"type": "object"}


def record(properties: Mapping[str, Schema]) -> dict[str, Any]:
    """Return the schema of an object with all of these properties."""
    return {"type": "object", "required": list(properties), "properties": dict(properties)}


def predict(signature: ModelSignature | None) -> Schema:
    """Return the schema of v1's request."""
    if signature is None:
        return _ANY
    inputs = signature.inputs.values()
    row = _whole({column.name: _nested(column, column.tail) for column in inputs})
    columns = _whole({column.name: _list(_nested(column, column.tail), 1) for column in inputs})
    rows = {"type": "array", "items": row, "minItems": 1, "maxItems": signature.max_batch}
    asked = [record({"instances": rows}), record({"inputs": columns})]
    asked[0]["properties"]["inputs"] = asked[1]["properties"]["instances"] = False
    return {"anyOf": asked, "example": example(signature)}


def predicted(signature: ModelSignature | None) -> Schema:
    """Return the schema of v1's answer: by rows or by columns, like its request."""
    if signature is None:
        return _ANY
    outputs = {column.name: _nested(column, column.tail) for column in signature.outputs.values()}
    row = next(iter(outputs.values())) if len(outputs) == 1 else _whole(outputs)
    columns = {name: {"type": "array", "items": kind} for name, kind in outputs.items()}
    rows = {"type": "array", "items": row}
    return {"oneOf": [_whole({"predictions": rows}), _whole({"outputs": _whole(columns)})]}


def infer(signature: ModelSignature | None, *, binary: bool = True) -> Schema:
    """Return the schema of v2's request. :param binary: whether it may ask for outputs as bytes."""
    if signature is None:
        return _ANY
    tensors = [_tensor(column) for column in signature.inputs.values()]
    masks = [_tensor(mask) for mask in signature.masks.values()]
    number, most = len(tensors), len(tensors) + len(masks)
    more = {"anyOf": masks} if masks else False
    names = {"enum": list(signature.outputs)}
    named = record({"name": names})
    named["properties"]["parameters"] = _flags("binary_data", binary=binary)
    wanted = {"anyOf": [named, names]}
    inputs = {"type": "array", "prefixItems": tensors, "items": more, "minItems": number, "maxItems": most}
    request = record({"inputs": inputs})
    request["properties"] |= {
        "id": {"type": ["string", "null"]},
        "outputs": {"anyOf": [{"type": "array", "items": wanted}, *wanted["anyOf"], {"type": "null"}]},
        "parameters": _flags("binary_data_output", binary=binary),
    }
    return request


def inferred(signature: ModelSignature | None) -> Schema:
    """Return the schema of v2's answer in JSON."""
    datatype = {"type": "string"}
    shape = {"type": "array", "items": {"type": "integer"}}
    output = record({"name": TEXT, "datatype": datatype, "shape": shape})
    output["properties"] |= {"data": {"type": "array"}, "parameters": _PARAMETERS}
    if signature:
        output["properties"]["name"] = {"enum": list(signature.outputs)}
    answer = record(
        {"model_name": TEXT, "model_version": TEXT, "outputs": {"type": "array", "items": output}}
    )
    answer["properties"]["id"] = TEXT
    return answer


def metadata() -> Schema:
    """Return the schema of a model's metadata."""
    shape = {"type": "array", "items": {"type": "integer"}}
    tensors = {"type": "array", "items": record({"name": TEXT, "datatype": TEXT, "shape": shape})}
    versions = {"type": "array", "items": TEXT}
    return record(
        {"name": TEXT, "versions": versions, "platform": TEXT, "inputs": tensors, "outputs": tensors}
    )


def example(signature: ModelSignature) -> dict[str, Any]:
    """Return a valid v1 request of one row."""
    columns = signature.inputs.values()
    return {"instances": [{column.name: _example(column, column.tail) for column in columns}]}


def _whole(properties: Mapping[str, Schema]) -> dict[str, Any]:
    return record(properties) | {"additionalProperties": False}


def _list(items: Schema, number: int) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": number, "maxItems": number}


def _nested(column: Column, sizes: Sequence[int]) -> Schema:
    """Return the schema of one row of a column: a value, or nested lists of these sizes."""
    return _list(_nested(column, sizes[1:]), sizes[0]) if sizes else _value(column)


def _tensor(column: Column) -> Schema:
    count = math.prod(column.tail)
    return record(
        {
            "name": {"const": column.name},
            "datatype": {"const": column.datatype},
            "shape": {"const": [1, *column.tail]},
            "data": _list(_value(column), count),
        }
    )


def _value(column: Column) -> Schema:
    if column.codes is not None and column.fallback is None:
        return {"enum": [*column.codes, *[None] * column.nullable]}
    if column.datatype == "BYTES":
        kind: dict[str, Any] = {"type": "string"}
    elif column.datatype == "BOOL":
        kind = {"type": "boolean"}
    else:
        name = "number" if float in column.accepted else "integer"
        kind = {"type": name, "minimum": column.least, "maximum": column.greatest}
    return kind | {"type": [kind["type"], "null"]} if column.nullable else kind


def _example(column: Column, sizes: Sequence[int]) -> Any:
    return [_example(column, sizes[1:])] * sizes[0] if sizes else column.example


def _flags(name: str, *, binary: bool) -> Schema:
    flag = {"type": "boolean"} if binary else {"const": False}
    return {"type": ["object", "null"], "properties": {name: flag}}
