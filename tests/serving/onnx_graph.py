"""Small ONNX models written by hand, so that neither a test nor a benchmark needs the onnx package.

ONNX is protocol buffers (https://github.com/onnx/onnx/blob/main/onnx/onnx.proto); the few messages
of a feed-forward graph are written here field by field. Standard library only.
"""

from __future__ import annotations

import itertools
import json
import random
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FLOAT, INT64, STRING = 1, 7, 8
OPSET = 17


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value & (1 << 64) - 1)


def _bytes(field: int, value: bytes | str) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _value(name: str, kind: int, tail: Sequence[int]) -> bytes:
    """ValueInfoProto: a tensor of any number of rows."""
    dims = [_bytes(2, "rows"), *(_number(1, size) for size in tail)]
    shape = b"".join(_bytes(1, dim) for dim in dims)
    return _bytes(1, name) + _bytes(2, _bytes(1, _number(1, kind) + _bytes(2, shape)))


def tensor(name: str, kind: int, dims: Sequence[int], values: Sequence[float] | bytes) -> bytes:
    """TensorProto: a constant of the graph. Bytes are little endian, as they are to be."""
    code = "f" if kind == FLOAT else "q"
    raw = values if isinstance(values, bytes) else struct.pack(f"<{len(values)}{code}", *values)
    return b"".join(_number(1, size) for size in dims) + _number(2, kind) + _bytes(8, name) + _bytes(9, raw)


def node(
    op: str, inputs: Sequence[str], output: str, *, axis: int | None = None, to: int | None = None
) -> bytes:
    """NodeProto: one operation."""
    out = b"".join(_bytes(1, name) for name in inputs) + _bytes(2, output) + _bytes(4, op)
    for name, number in (("axis", axis), ("to", to)):
        if number is not None:
            out += _bytes(5, _bytes(1, name) + _number(3, number) + _number(20, 2))
    return out


def model(
    nodes: Sequence[bytes],
    constants: Sequence[bytes],
    inputs: Sequence[tuple[str, int, Sequence[int]]],
    outputs: Sequence[tuple[str, int, Sequence[int]]],
) -> bytes:
    """ModelProto: the whole file."""
    graph = b"".join(_bytes(1, n) for n in nodes) + _bytes(2, "graph")
    graph += b"".join(_bytes(5, constant) for constant in constants)
    graph += b"".join(_bytes(11, _value(*value)) for value in inputs)
    graph += b"".join(_bytes(12, _value(*value)) for value in outputs)
    return _number(1, 8) + _bytes(7, graph) + _bytes(8, _bytes(1, "") + _number(2, OPSET))


def write(folder: Path, graph: bytes, signature: dict[str, Any]) -> Path:
    """Write a version's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.onnx").write_bytes(graph)
    (folder / "signature.json").write_text(json.dumps(signature))
    return folder


def write_line(folder: Path, *, slope: float = 2.0, offset: float = 0.0) -> Path:
    """Write a model of one line: ``y = slope * x + offset`` for x from 0 to 1000, y from -1000 to 5000."""
    constants = [tensor("slope", FLOAT, [1], [slope]), tensor("offset", FLOAT, [1], [offset])]
    nodes = [node("Mul", ["x", "slope"], "scaled"), node("Add", ["scaled", "offset"], "y")]
    graph = model(nodes, constants, [("x", FLOAT, [])], [("y", FLOAT, [])])
    signature = {
        "format": 1,
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1], "min": 0, "max": 1000}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1], "min": -1000, "max": 5000}],
    }
    return write(folder, graph, signature)


def write_delays(folder: Path, *, seed: int = 0) -> Path:
    """Write an untrained model of the flights model's shape: three embeddings and nine numbers, 28-128-64-1."""
    rng = random.Random(seed)
    tables = {"carrier": (16, 8), "origin": (3, 3), "dest": (105, 8)}
    numbers = [f"number_{i}" for i in range(9)]
    constants, nodes, parts = [], [], []
    for name, (rows, width) in tables.items():
        constants.append(
            tensor(f"{name}_table", FLOAT, [rows, width], [rng.gauss(0, 1) for _ in range(rows * width)])
        )
        nodes.append(node("Gather", [f"{name}_table", name], f"{name}_row", axis=0))
        parts.append(f"{name}_row")
    constants.append(tensor("one", INT64, [1], [1]))
    for name in numbers:
        nodes.append(node("Unsqueeze", [name, "one"], f"{name}_row"))
        parts.append(f"{name}_row")
    nodes.append(node("Concat", parts, "h0", axis=1))
    sizes = [28, 128, 64, 1]
    for layer, (width, height) in enumerate(itertools.pairwise(sizes)):
        weights = [rng.gauss(0, width**-0.5) for _ in range(width * height)]
        constants.append(tensor(f"w{layer}", FLOAT, [width, height], weights))
        constants.append(tensor(f"b{layer}", FLOAT, [height], [0.0] * height))
        nodes.append(node("Gemm", [f"h{layer}", f"w{layer}", f"b{layer}"], f"g{layer}"))
        nodes.append(node("Relu" if height > 1 else "Sigmoid", [f"g{layer}"], f"h{layer + 1}"))
    nodes.append(node("Squeeze", ["h3", "one"], "probability"))
    inputs = [(name, INT64, ()) for name in tables] + [(name, FLOAT, ()) for name in numbers]
    graph = model(nodes, constants, inputs, [("probability", FLOAT, ())])
    signature = {
        "format": 1,
        "inputs": [
            *({"name": n, "datatype": "INT64", "min": 0, "max": rows - 1} for n, (rows, _) in tables.items()),
            *({"name": n, "datatype": "FP32"} for n in numbers),
        ],
        "outputs": [{"name": "probability", "datatype": "FP32", "min": 0, "max": 1}],
    }
    return write(folder, graph, signature)


def write_greedy(folder: Path, *, values: int) -> Path:
    """Write a model that asks for `values` numbers of memory to answer one row."""
    constants = [tensor("size", INT64, [1], [values])]
    nodes = [node("Expand", ["x", "size"], "wide"), node("ReduceMean", ["wide"], "mean")]
    nodes += [node("Add", ["x", "mean"], "y")]
    graph = model(nodes, constants, [("x", FLOAT, [])], [("y", FLOAT, [])])
    columns = [{"name": name, "datatype": "FP32", "shape": [-1]} for name in "xy"]
    return write(folder, graph, {"format": 1, "inputs": columns[:1], "outputs": columns[1:]})


def write_big(folder: Path, *, rows: int, value: float = 0.0) -> Path:
    """Write a model of one table with `rows` rows of 4 KiB: ``y`` is the sum of a row, 1024 times `value`."""
    table = struct.pack("<f", value) * (rows * 1024)
    constants = [tensor("table", FLOAT, [rows, 1024], table), tensor("ones", FLOAT, [1024, 1], [1.0] * 1024)]
    constants.append(tensor("one", INT64, [1], [1]))
    nodes = [
        node("Gather", ["table", "row"], "picked", axis=0),
        node("MatMul", ["picked", "ones"], "sums"),
        node("Squeeze", ["sums", "one"], "y"),
    ]
    graph = model(nodes, constants, [("row", INT64, ())], [("y", FLOAT, ())])
    signature = {
        "format": 1,
        "inputs": [{"name": "row", "datatype": "INT64", "min": 0, "max": rows - 1}],
        "outputs": [{"name": "y", "datatype": "FP32"}],
    }
    return write(folder, graph, signature)


def write_mixed(folder: Path) -> Path:
    """Write a model of every kind of input: ``y = points[code] + day + (left + 10 middle + 100 right)``.

    ``code`` is text with categories, ``day`` a whole number of some, ``place`` has three values a row;
    the second output has two values a row, y and ``points[code]``.
    """
    constants = [
        tensor("points", FLOAT, [3, 1], [0.0, 0.25, 0.5]),
        tensor("weights", FLOAT, [3, 1], [1.0, 10.0, 100.0]),
        tensor("one", INT64, [1], [1]),
    ]
    nodes = [
        node("Gather", ["points", "code"], "code_points", axis=0),
        node("Cast", ["day"], "day_number", to=FLOAT),
        node("Unsqueeze", ["day_number", "one"], "day_row"),
        node("MatMul", ["place", "weights"], "place_points"),
        node("Add", ["code_points", "day_row"], "some"),
        node("Add", ["some", "place_points"], "all"),
        node("Squeeze", ["all", "one"], "y"),
        node("Concat", ["all", "code_points"], "pair", axis=1),
    ]
    inputs = [("code", INT64, ()), ("day", INT64, ()), ("place", FLOAT, (3,))]
    graph = model(nodes, constants, inputs, [("y", FLOAT, ()), ("pair", FLOAT, (2,))])
    signature = {
        "format": 1,
        "max_batch": 100,
        "inputs": [
            {"name": "code", "datatype": "BYTES", "categories": ["OTHER", "AA", "UA"], "fallback": "OTHER"},
            {"name": "day", "datatype": "INT64", "categories": [1, 2, 3, 7]},
            {"name": "place", "datatype": "FP32", "shape": [-1, 3]},
        ],
        "outputs": [
            {"name": "y", "datatype": "FP32"},
            {"name": "pair", "datatype": "FP32", "shape": [-1, 2]},
        ],
    }
    return write(folder, graph, signature)


def write_table(folder: Path) -> Path:
    """Write a model whose signature lets in what its own table of three rows does not hold."""
    constants = [tensor("table", FLOAT, [3], [0.0, 1.0, float("nan")])]
    graph = model(
        [node("Gather", ["table", "row"], "y", axis=0)], constants, [("row", INT64, ())], [("y", FLOAT, ())]
    )
    columns = [{"name": "row", "datatype": "INT64"}, {"name": "y", "datatype": "FP32"}]
    return write(folder, graph, {"format": 1, "inputs": columns[:1], "outputs": columns[1:]})


def write_texts(folder: Path) -> Path:
    """Write a model that answers the text that it is given: ``y = x``."""
    graph = model([node("Identity", ["x"], "y")], [], [("x", STRING, ())], [("y", STRING, ())])
    columns = [{"name": name, "datatype": "BYTES"} for name in "xy"]
    return write(folder, graph, {"format": 1, "inputs": columns[:1], "outputs": columns[1:]})
