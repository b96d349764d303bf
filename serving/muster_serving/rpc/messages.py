"""gRPC's messages as bodies of HTTP, and answers of HTTP as gRPC's messages: the front reads one form only.

A tensor's values become bytes after the body's JSON (:mod:`muster_serving.binary`), or JSON where only JSON's numbers are
checked against their data type.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np  # noqa: TID253 - the server cannot do without; nothing that Airflow parses imports it
import orjson
from grpclib.const import Status

from muster_serving.answer import MODEL, PREDICTION, REVISION, Headers, HttpAnswer
from muster_serving.binary import encode
from muster_serving.column import DATATYPES
from muster_serving.content import JSON_LENGTH
from muster_serving.errors import RequestError
from muster_serving.rpc import generated as messages

Told = tuple[tuple[str, str], ...]
_CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
_FLOATS = {"FP32": np.dtype("<f4"), "FP64": np.dtype("<f8")}
_LENGTH = struct.Struct("<I")
_TOLD = (REVISION, MODEL, PREDICTION, b"retry-after")
_STATUSES = {
    400: Status.INVALID_ARGUMENT,
    401: Status.UNAUTHENTICATED,
    403: Status.PERMISSION_DENIED,
    404: Status.NOT_FOUND,
    413: Status.RESOURCE_EXHAUSTED,
    429: Status.RESOURCE_EXHAUSTED,
    500: Status.INTERNAL,
    503: Status.UNAVAILABLE,
    504: Status.DEADLINE_EXCEEDED,
}


def body_of(request: Any, *, as_bytes: bool) -> tuple[bytes, int]:
    """Return a ModelInferRequest as a body with binary tensors, and the length of its JSON.

    :param as_bytes: whether the answer is asked for in the form of the request, as bytes or as typed values; else it is
        JSON.
    :raises RequestError: values are missing, are there twice, or are of another type than the tensor says.
    """
    raw: Sequence[bytes] = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise RequestError(
            f"found {len(raw)} raw_input_contents for {len(request.inputs)} inputs: each input needs one"
        )
    inputs: list[dict[str, Any]] = []
    parts: list[bytes] = []
    for i, tensor in enumerate(request.inputs):
        described = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
        if not raw:
            values = _values(tensor)
        elif tensor.HasField("contents"):
            raise RequestError(
                f"input {tensor.name!r:.80}: found contents and raw_input_contents, expected one of the two"
            )
        else:
            values = raw[i]
        if isinstance(values, bytes):
            described["parameters"] = {"binary_data_size": len(values)}
            parts.append(values)
        else:
            described["data"] = values
        inputs.append(described)
    asked: dict[str, Any] = {"inputs": inputs}
    if request.id:
        asked["id"] = request.id
    if request.outputs:
        asked["outputs"] = [{"name": output.name} for output in request.outputs]
    if raw and as_bytes:
        asked["parameters"] = {"binary_data_output": True}
    head = orjson.dumps(asked)
    return b"".join([head, *parts]), len(head)


def response_of(answer: HttpAnswer) -> Any:
    """Return an answer of the front's to a request of version 2 as a ModelInferResponse."""
    length = next((int(value) for name, value in answer.headers if name == JSON_LENGTH), None)
    found = orjson.loads(answer.body if length is None else answer.body[:length])
    response = _begun(found)
    at = length or 0
    for output in found["outputs"]:
        if length is None:
            _add(response, output, raw=False)
        else:
            _described(response, output)
            size = output["parameters"]["binary_data_size"]
            response.raw_output_contents.append(answer.body[at : at + size])
            at += size
    return response


def part_of(found: dict[str, Any], *, raw: bool) -> Any:
    """Return one part of an answer, which is JSON of version 2, as a ModelInferResponse.

    :param raw: whether its values become bytes.
    """
    response = _begun(found)
    for output in found["outputs"]:
        _add(response, output, raw=raw)
    return response


def _begun(found: dict[str, Any]) -> Any:
    return messages.ModelInferResponse(
        model_name=found["model_name"], model_version=found["model_version"], id=found.get("id", "")
    )


def _described(response: Any, output: dict[str, Any]) -> Any:
    return response.outputs.add(name=output["name"], datatype=output["datatype"], shape=output["shape"])


def _add(response: Any, output: dict[str, Any], *, raw: bool) -> None:
    """Add an output whose values are JSON."""
    tensor, data = _described(response, output), output["data"]
    if raw:
        values = np.array(data, DATATYPES[tensor.datatype])
        response.raw_output_contents.append(encode(tensor.datatype, values))
    else:
        texts = tensor.datatype == "BYTES"
        values = [text.encode() for text in data] if texts else data
        getattr(tensor.contents, _CONTENTS[tensor.datatype]).extend(values)


def metadata_of(found: dict[str, Any]) -> Any:
    """Return a model's metadata as a ModelMetadataResponse."""
    described = messages.ModelMetadataResponse
    sides = {
        side: [described.TensorMetadata(**tensor) for tensor in found[side]] for side in ("inputs", "outputs")
    }
    return described(name=found["name"], versions=found["versions"], platform=found["platform"], **sides)


def status_of(status: int) -> Status:
    """Return gRPC's status for one of HTTP."""
    return _STATUSES.get(status) or _STATUSES[status // 100 * 100]


def told_of(headers: Headers) -> Told:
    """Return what an answer's headers tell of its version, and when to try again, as metadata after it."""
    return tuple(
        (name.decode("ascii"), value.decode("latin-1").encode("ascii", "replace").decode("ascii"))
        for name, value in headers
        if name in _TOLD
    )


def _values(tensor: Any) -> bytes | list[Any]:
    """Return the values of a tensor's contents. :raises RequestError: they are those of another data type."""
    wanted = _CONTENTS.get(tensor.datatype)
    if wanted is None:
        return []  # no signature has this data type, and reading it says so
    for field, _ in tensor.contents.ListFields():
        if field.name != wanted:
            raise RequestError(
                f"input {tensor.name!r:.80}: found {field.name}, expected {wanted} for {tensor.datatype}"
            )
    values = getattr(tensor.contents, wanted)
    if tensor.datatype == "BYTES":
        return b"".join(_LENGTH.pack(len(text)) + text for text in values)
    if tensor.datatype in _FLOATS:
        return np.array(values, _FLOATS[tensor.datatype]).tobytes()
    return list(values)
