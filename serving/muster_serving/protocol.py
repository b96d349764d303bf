"""The wire format: turns bodies of the Open Inference Protocol v2 and of v1 into tensors, and predictions into answers.

Pure functions of bytes, so that all servers answer the same. Sources:
https://github.com/kserve/open-inference-protocol (v2) and
https://kserve.github.io/website/docs/concepts/architecture/data-plane/v1-protocol (v1).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import orjson

from muster_serving import binary
from muster_serving.answer import JSON, Headers, HttpAnswer
from muster_serving.binary import NOTHING, Tail
from muster_serving.column import Array, Column
from muster_serving.content import BINARY, JSON_LENGTH, kind_of, read_object
from muster_serving.errors import ANSWERING, READING, RequestError, refuse_half_pairs
from muster_serving.histograms import Histograms
from muster_serving.predictor import Predictor
from muster_serving.routes import STREAM, ModelPath
from muster_serving.signature import NULLS, ModelSignature

if TYPE_CHECKING:
    from muster_serving.clients import Caller
    from muster_serving.events import Outlet


class InferenceRequest(NamedTuple):
    """A request that was read: what the predictor is asked, and how its answer is written.

    :param columns: for every input a flat list of JSON values, or an array where its column takes one.
    :param write: returns the body of an answer, and its headers.
    :param as_bytes: whether outputs are asked for as bytes after the JSON.
    """

    columns: Mapping[str, list[Any] | Array]
    rows: int
    write: Callable[[Mapping[str, Array]], tuple[bytes, Headers]]
    as_bytes: bool = False


class Question(NamedTuple):
    """A request to a model that has come, and is not read yet.

    :param json_length: length of the JSON, in bytes, before binary tensors; None: the whole body is JSON.
    :param client: who asks, where that is known.
    :param out: where an answer in parts goes as it is computed; None: all answers are whole.
    """

    call: ModelPath
    body: bytes = b""
    json_length: int | None = None
    client: Caller | None = None
    out: Outlet | None = None


class ServedRevision(Protocol):
    """A revision that answers."""

    @property
    def revision(self) -> str:
        """Its name."""

    @property
    def headers(self) -> Headers:
        """They name the revision and the version."""

    @property
    def histograms(self) -> Histograms | None:
        """By which requests are to be counted; None: they are not."""


def answer(predictor: Predictor, question: Question, *, of: ServedRevision) -> HttpAnswer:
    """Answer a prediction of either protocol at once.

    :raises RequestError: as :func:`read`.
    :raises PredictionError: the model failed.
    """
    asked = read(predictor.signature, question, revision=of.revision)
    with ANSWERING:
        payload, headers = asked.write(predictor.predict(asked.columns, asked.rows))
        places = of.histograms.places(asked.columns, asked.rows) if of.histograms else None
        outside = predictor.signature.outside(asked.columns)
        return HttpAnswer(200, payload, headers + of.headers, outside, places)


def read(signature: ModelSignature, question: Question, *, revision: str) -> InferenceRequest:
    """Read a prediction request of either protocol.

    :raises RequestError: the body is not JSON, or the signature does not allow it; the message names the field.
    """
    with READING:
        call, body, length = question[:3]
        if call.verb != ":predict":
            asked = _read_v2(signature, body, name=call.name, revision=revision, json_length=length)
            if call.verb == STREAM and asked.as_bytes:
                raise RequestError("events are text: ask for no binary outputs, or at /infer")
            return asked
        if length is not None:
            raise RequestError(f"version 1 has no binary tensors: ask /v2/models/{call.name}/infer")
        return read_v1(signature, body)


def _read_v2(
    signature: ModelSignature, body: bytes, *, name: str, revision: str, json_length: int | None
) -> InferenceRequest:
    """Read the body of ``POST /v2/models/NAME/infer``. :raises RequestError: as :func:`read`."""
    tail = NOTHING if json_length is None else Tail(body, json_length)
    asked = read_object(body if json_length is None else body[:json_length])
    columns, rows = _tensors(signature, asked.get("inputs"), tail)
    if tail is not NOTHING:
        tail.check_end()
    wanted = _wanted(signature, asked.get("outputs"), asked.get("parameters"))
    response: dict[str, Any] = {"model_name": name, "model_version": revision}
    identity = asked.get("id")
    if identity is not None:
        if type(identity) is not str:
            raise RequestError(f"id: found {identity!r:.60}, expected text")
        refuse_half_pairs([identity], "id")
        response["id"] = identity
    as_bytes = any(each for _, each in wanted)
    return InferenceRequest(columns, rows, partial(_answered, response, wanted), as_bytes)


def _answered(
    response: dict[str, Any], wanted: list[tuple[Column, bool]], answer: Mapping[str, Array]
) -> tuple[bytes, Headers]:
    """Write the outputs as JSON, or as bytes after the JSON where the request asks for bytes."""
    outputs = response["outputs"] = []
    parts: list[bytes] = []
    for column, as_bytes in wanted:
        array = answer[column.name]
        output = {"name": column.name, "datatype": column.datatype, "shape": list(array.shape)}
        if as_bytes:
            parts.append(binary.encode(column.datatype, array))
            output["parameters"] = {"binary_data_size": len(parts[-1])}
        else:
            output["data"] = array.ravel().tolist()
        outputs.append(output)
    head = orjson.dumps(response)
    if not parts:
        return head, JSON
    headers = ((b"content-type", BINARY), (JSON_LENGTH, b"%d" % len(head)))
    return b"".join([head, *parts]), headers


def read_v1(signature: ModelSignature, body: bytes) -> InferenceRequest:
    """Read the body of ``POST /v1/models/NAME:predict``.

    ``{"instances": [{"hour": 13}, …]}`` is answered row by row as ``{"predictions": […]}``,
    ``{"inputs": {"hour": [13, …]}}`` column by column as ``{"outputs": {…}}``. A row is the bare
    value where the model has one output, else an object.

    :raises RequestError: as :func:`read`.
    """
    asked = read_object(body)
    if ("instances" in asked) == ("inputs" in asked):
        raise RequestError('expected {"instances": [{…}]} or {"inputs": {…}}, one of the two')
    by_row = "instances" in asked
    columns = _from_rows(asked["instances"]) if by_row else asked["inputs"]
    flat, rows = read_columns(signature, columns)
    return InferenceRequest(flat, rows, _write_rows if by_row else _write_columns)


def _write_columns(arrays: Mapping[str, Array]) -> tuple[bytes, Headers]:
    return orjson.dumps({"outputs": {name: array.tolist() for name, array in arrays.items()}}), JSON


def _write_rows(arrays: Mapping[str, Array]) -> tuple[bytes, Headers]:
    answer = {name: array.tolist() for name, array in arrays.items()}
    if len(answer) == 1:
        return orjson.dumps({"predictions": next(iter(answer.values()))}), JSON
    rows_out = zip(*answer.values(), strict=True)
    return orjson.dumps({"predictions": [dict(zip(answer, row, strict=True)) for row in rows_out]}), JSON


def read_columns(signature: ModelSignature, columns: Any) -> tuple[dict[str, list[Any] | Array], int]:
    """Read an object of JSON lists by input, all of one length; return flat lists by input, and the number of rows.

    :raises RequestError: the signature does not allow it; the message names the field.
    """
    if type(columns) is not dict:
        raise RequestError(f"inputs: found {kind_of(columns)}, expected an object of lists by name")
    signature.check_names(list(columns))
    return _columns(signature, columns)


def _from_rows(rows: Any) -> dict[str, list[Any]]:
    """Turn v1's rows into columns. :raises RequestError: they are no rows, or their names differ."""
    if type(rows) is not list or not rows:
        raise RequestError(f"instances: found {kind_of(rows)}, expected a list of one or more objects")
    first = rows[0]
    for i, row in enumerate(rows):
        if type(row) is not dict:
            raise RequestError(f"instances[{i}]: found {kind_of(row)}, expected an object of values by name")
        if row.keys() != first.keys():
            odd = min(row.keys() ^ first.keys())
            raise RequestError(
                f"instances[{i}]: {odd!r:.80} is not in every row; all rows need the same names"
            )
    return {name: [row[name] for row in rows] for name in first}


def _tensors(signature: ModelSignature, tensors: Any, tail: Tail) -> tuple[dict[str, list[Any] | Array], int]:
    """Read v2's list of tensors; return a flat list of values for each input, and the number of rows."""
    if type(tensors) is not list:
        raise RequestError(f"inputs: found {kind_of(tensors)}, expected a list of tensors")
    columns: dict[str, list[Any] | Array] = {}
    masks: list[tuple[Column, list[Any]]] = []
    rows = -1
    for tensor in tensors:
        if type(tensor) is not dict:
            raise RequestError(
                f"inputs: found {kind_of(tensor)}, expected tensors with name, shape, datatype and data"
            )
        name = tensor.get("name")
        column = signature.inputs.get(name) if type(name) is str else None
        if column is None and type(name) is str and (mask := signature.masks.get(name)):
            values, length = _tensor(mask, tensor, tail)
            masks.append((mask, mask.array(values).tolist()))
        elif column is None or name in columns:
            raise _misnamed(signature, name, seen=column is not None)
        else:
            columns[column.name], length = _tensor(column, tensor, tail)
        if rows == -1:
            rows = length
            signature.check_rows(rows)
        elif rows != length:
            raise _ragged(name, length, rows)
    if len(columns) != len(signature.inputs):
        signature.check_names(list(columns))
    for mask, nulls in masks:
        name = mask.name.removesuffix(NULLS)
        values = _listed(columns[name])
        columns[name] = [None if null else value for value, null in zip(values, nulls, strict=True)]
    return columns, rows


def _tensor(column: Column, tensor: Mapping[str, Any], tail: Tail) -> tuple[list[Any] | Array, int]:
    """Return one tensor's values, flat, and its number of rows."""
    if tensor.get("datatype") != column.datatype:
        raise RequestError(
            f"input {column.name!r}: datatype is {tensor.get('datatype')!r:.40}, expected {column.datatype}"
        )
    data, shape = tensor.get("data"), tensor.get("shape")
    if "parameters" in tensor and (parameters := tensor["parameters"]) is not None:
        where = f"input {column.name!r}"
        size = binary.checked(where, parameters).get("binary_data_size")
        if size is not None:
            if data is not None:
                raise RequestError(f"{where}: found data and binary_data_size, expected one of the two")
            return _counted(column, tail.take(column, size), _sizes(column, shape))
    if type(data) is not list:
        raise RequestError(f"input {column.name!r}: data is {kind_of(data)}, expected a JSON list of values")
    if not column.tail and shape == [len(data)] and type(shape[0]) is int:
        return data, len(data)
    return _shaped(column, data, shape)


def _shaped(column: Column, data: list[Any], shape: Any) -> tuple[list[Any] | Array, int]:
    """Read a tensor of several dimensions. :raises RequestError: its shape is wrong."""
    sizes = _sizes(column, shape)
    return _counted(column, _flat(column, data, sizes), sizes)


def _sizes(column: Column, shape: Any) -> list[int]:
    """Check a tensor's shape. A plain column may also come as rows of one value, as MLServer's codecs send it."""
    sizes = shape if type(shape) is list and all(type(size) is int and size >= 0 for size in shape) else []
    if not sizes or (sizes[1:] != list(column.tail) and (column.tail or sizes[1:] != [1])):
        expected = [-1, *column.tail]
        raise RequestError(
            f"input {column.name!r}: shape is {shape!r:.60}, expected {expected}, -1 for any number of rows"
        )
    return sizes


def _counted(column: Column, flat: list[Any] | Array, sizes: list[int]) -> tuple[list[Any] | Array, int]:
    """Return the values and their number of rows. :raises RequestError: too many or too few for the shape."""
    count = math.prod(sizes)
    if len(flat) != count:
        raise RequestError(
            f"input {column.name!r}: shape {sizes!r:.60} needs {count} values, found {len(flat)}"
        )
    return flat, sizes[0]


def _flat(column: Column, data: list[Any], shape: list[int]) -> list[Any]:
    """Flatten data that is nested by its shape; flat data stays as it is."""
    for depth, size in enumerate(shape[1:], start=1):
        if not data or type(data[0]) is not list:
            return data
        if not all(type(row) is list and len(row) == size for row in data):
            raise RequestError(
                f"input {column.name!r}: nested data does not have {size} values in dimension {depth}"
            )
        data = [value for row in data for value in row]
    return data


def _columns(
    signature: ModelSignature, columns: Mapping[str, Any]
) -> tuple[dict[str, list[Any] | Array], int]:
    """Read v1's columns, whose lists give their shapes."""
    flat: dict[str, list[Any] | Array] = {}
    rows = -1
    for name, values in columns.items():
        if type(values) is not list:
            raise RequestError(f"input {name!r}: found {kind_of(values)}, expected a list of values")
        if rows == -1:
            rows = len(values)
            signature.check_rows(rows)
        elif rows != len(values):
            raise _ragged(name, len(values), rows)
        column = signature.inputs[name]
        flat[name], _ = _shaped(column, values, [rows, *column.tail])
    return flat, rows


def _listed(values: list[Any] | Array) -> list[Any]:
    return values if isinstance(values, list) else list(values.tolist())


def _wanted(signature: ModelSignature, outputs: Any, parameters: Any) -> list[tuple[Column, bool]]:
    """Return the outputs that a v2 request names (all, if it names none), each with whether it is sent as bytes."""
    default = parameters is not None and binary.flag(
        "the request", parameters, "binary_data_output", default=False
    )
    if outputs is None or outputs == []:
        return [(column, default) for column in signature.outputs.values()]
    wanted: dict[str, tuple[Column, bool]] = {}
    for output in outputs if type(outputs) is list else [outputs]:
        asked = output if type(output) is dict else {"name": output}
        name = asked.get("name")
        if type(name) is not str or name not in signature.outputs:
            raise RequestError(
                f"output {name!r:.80} is unknown; this model answers {', '.join(signature.outputs)}"
            )
        as_bytes = binary.flag(f"output {name!r}", asked.get("parameters"), "binary_data", default=default)
        wanted[name] = (signature.outputs[name], as_bytes)
    return list(wanted.values())


def _misnamed(signature: ModelSignature, name: Any, *, seen: bool) -> RequestError:
    if seen:
        return RequestError(f"input {name!r:.80} is there twice")
    return RequestError(f"input {name!r:.80} is unknown; this model takes {', '.join(signature.inputs)}")


def _ragged(name: str, found: int, rows: int) -> RequestError:
    return RequestError(
        f"input {name!r} has {found} rows, the inputs before it have {rows}: all need the same"
    )


def read_request(
    signature: ModelSignature, body: bytes, *, v1: bool, json_length: int | None = None
) -> tuple[dict[str, list[Any]], int, str | None]:
    """Return the values of an answered request by column, its number of rows, and the id that its client gave it.

    :param v1: whether it is one of version 1.
    :raises RequestError: as :func:`infer_v2`.
    """
    asked = read_object(body if json_length is None else body[:json_length])
    columns: Mapping[str, list[Any] | Array]
    if v1:
        columns, rows = _columns(
            signature, _from_rows(asked["instances"]) if "instances" in asked else asked["inputs"]
        )
    else:
        tail = NOTHING if json_length is None else Tail(body, json_length)
        columns, rows = _tensors(signature, asked.get("inputs"), tail)
    listed = {name: _listed(values) for name, values in columns.items()}
    return listed, rows, None if v1 else asked.get("id")


def read_answer(
    signature: ModelSignature, body: bytes, *, json_length: int | None = None
) -> dict[str, list[Any]]:
    """Return the values of an answer by output, flat; the reverse of what this module wrote."""
    answer = orjson.loads(body if json_length is None else body[:json_length])
    if "model_name" in answer:
        tail = NOTHING if json_length is None else Tail(body, json_length)
        return {one["name"]: _answered_values(signature, one, tail) for one in answer["outputs"]}
    if "outputs" in answer:
        return {name: _flattened(values) for name, values in answer["outputs"].items()}
    rows = answer["predictions"]
    if len(signature.outputs) == 1:
        return {name: _flattened(rows) for name in signature.outputs}
    return {name: _flattened([row[name] for row in rows]) for name in signature.outputs}


def _answered_values(signature: ModelSignature, output: Mapping[str, Any], tail: Tail) -> list[Any]:
    if "data" in output:
        return list(output["data"])
    values = tail.take(signature.outputs[output["name"]], output["parameters"]["binary_data_size"])
    return values if isinstance(values, list) else list(values.tolist())


def _flattened(values: list[Any]) -> list[Any]:
    while values and type(values[0]) is list:
        values = [value for row in values for value in row]
    return values
