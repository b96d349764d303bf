"""Writes the trained network as a served model: ``model.onnx`` and ``signature.json``.

The graph has one input for each raw column, and returns the probability. Constants are folded: the scale of the numbers
and the first layer become one matrix, the embeddings and the first layer one lookup table, so that a request of one row
takes few, small steps.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from flights.network import LateNet
from flights.table import BOUNDS, CYCLES, NUMBERS, PLAIN, SKEWED, TEXT, UNKNOWN

OPSET = 18
IR_VERSION = 9
"""Of 2023: ONNX Runtime reads it from 1.14 on."""

CODES = (*TEXT, *CYCLES)


def export(network: LateNet, categories: dict[str, list[str]], model: Path) -> None:
    """Write ``model.onnx`` and ``signature.json`` into the folder `model`."""
    graph = helper.make_graph(
        _nodes(), "flights", _inputs(), [_column("probability", TensorProto.FLOAT)], _constants(network)
    )
    built = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    onnx.checker.check_model(built, full_check=True)
    onnx.save(built, model / "model.onnx")
    (model / "signature.json").write_text(json.dumps(signature(categories), indent=1) + "\n")


def signature(categories: dict[str, list[str]]) -> dict[str, Any]:
    """Return the signature: text inputs with their categories, numbers with their bounds."""
    text = [_field(n, "BYTES", categories=categories[n], fallback=UNKNOWN) for n in TEXT]
    cycles = [_field(n, "INT64", **_bounds(n)) for n in CYCLES]
    numbers = [_field(n, "FP32", **_bounds(n)) for n in NUMBERS]
    output = _field("probability", "FP32", min=0, max=1)
    return {"format": 1, "inputs": [*text, *cycles, *numbers], "outputs": [output]}


def _field(name: str, datatype: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": [-1], **more}


def _bounds(name: str) -> dict[str, float]:
    low, high = BOUNDS.get(name, (None, None))
    return {key: value for key, value in (("min", low), ("max", high)) if value is not None}


def _inputs() -> list[onnx.ValueInfoProto]:
    codes = [_column(name, TensorProto.INT64) for name in CODES]
    return codes + [_column(name, TensorProto.FLOAT) for name in NUMBERS]


def _column(name: str, kind: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, ["rows"])


def _nodes() -> list[onnx.NodeProto]:
    """Return the graph's nodes. Columns are stacked as (columns, rows) up to the first layer: no transposition."""
    node = helper.make_node
    return [
        node("Concat", list(SKEWED), ["skewed"], axis=0),
        node("Abs", ["skewed"], ["size"]),
        node("Add", ["size", "one"], ["size_and_one"]),
        node("Log", ["size_and_one"], ["logarithm"]),
        node("Sign", ["skewed"], ["sign"]),
        node("Mul", ["sign", "logarithm"], ["evened"]),
        node("Concat", ["evened", *PLAIN], ["numbers_flat"], axis=0),
        node("Reshape", ["numbers_flat", "numbers_shape"], ["numbers"]),
        node("Gemm", ["numbers", "number_weights", "bias"], ["from_numbers"], transA=1),
        node("Concat", list(CODES), ["codes_flat"], axis=0),
        node("Reshape", ["codes_flat", "codes_shape"], ["codes"]),
        node("Add", ["codes", "offsets"], ["places"]),
        node("Gather", ["lookup", "places"], ["looked_up"], axis=0),
        node("ReduceSum", ["looked_up", "first_axis"], ["from_codes"], keepdims=0),
        node("Add", ["from_numbers", "from_codes"], ["first"]),
        node("Split", ["first", "split"], ["first_layer", "linear"], axis=1),
        node("Relu", ["first_layer"], ["first_active"]),
        node("Gemm", ["first_active", "second_weights", "second_bias"], ["second_layer"]),
        node("Relu", ["second_layer"], ["second_active"]),
        node("Gemm", ["second_active", "last_weights", "last_bias"], ["deep"]),
        node("Add", ["deep", "linear"], ["logits"]),
        node("Reshape", ["logits", "flat"], ["logit"]),
        node("Sigmoid", ["logit"], ["probability"]),
    ]


def _constants(network: LateNet) -> list[onnx.TensorProto]:
    state = {name: value.double().cpu().numpy() for name, value in network.state_dict().items()}
    sizes = [len(state[f"weights.{i}.weight"]) for i in range(len(CODES))]
    first, hidden = state["deep.0.weight"], len(state["deep.0.bias"])
    number_part = np.concatenate([first[:, -len(NUMBERS) :], state["linear.weight"]]) / state["deviation"]
    bias = np.append(state["deep.0.bias"], state["linear.bias"]) - number_part @ state["mean"]
    floats = {
        "one": np.ones(1),
        "number_weights": number_part.T,
        "bias": bias,
        "lookup": _lookup(state, first),
        "second_weights": state["deep.3.weight"].T,
        "second_bias": state["deep.3.bias"],
        "last_weights": state["deep.6.weight"].T,
        "last_bias": state["deep.6.bias"],
    }
    whole = {
        "numbers_shape": [len(NUMBERS), -1],
        "codes_shape": [len(CODES), -1],
        "offsets": np.cumsum([0, *sizes[:-1]])[:, None],
        "first_axis": [0],
        "split": [hidden, 1],
        "flat": [-1],
    }
    named = [numpy_helper.from_array(np.asarray(v, np.float32), n) for n, v in floats.items()]
    return named + [numpy_helper.from_array(np.asarray(v, np.int64), n) for n, v in whole.items()]


def _lookup(state: dict[str, np.ndarray], first: np.ndarray) -> np.ndarray:
    """Return, for each category of each column, its term in the first layer and in the linear part."""
    blocks, begin = [], 0
    for column in range(len(CODES)):
        embedding = state[f"embeddings.{column}.weight"]
        end = begin + embedding.shape[1]
        blocks.append(
            np.concatenate([embedding @ first[:, begin:end].T, state[f"weights.{column}.weight"]], axis=1)
        )
        begin = end
    return np.concatenate(blocks)
