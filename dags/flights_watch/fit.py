"""Logistic regression on carrier, origin, hour and distance, written as ``model.onnx`` and ``signature.json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pyarrow.parquet as pq
from onnx import TensorProto, helper, numpy_helper

OPSET, IR_VERSION = 18, 9
STEPS, RIDGE = 8, 1.0
TEXT = ("carrier", "origin")
SCALE = {"hour": 24.0, "distance": 1000.0}
OTHER = "OTHER"


def fit(train: Path, model: Path) -> dict[str, float]:
    """Fit by Newton's method (iteratively reweighted least squares), and return the log loss on the same rows."""
    table = pq.read_table(train / "flights.parquet")
    categories = {name: [OTHER, *sorted(set(table[name].to_pylist()))] for name in TEXT}
    design = _design(table, categories)
    late = table["late"].to_numpy().astype(float)
    weights = np.zeros(design.shape[1])
    for _ in range(STEPS):
        said = 1 / (1 + np.exp(-design @ weights))
        slope = design.T @ (late - said) - RIDGE * weights
        bend = (design * (said * (1 - said))[:, None]).T @ design + RIDGE * np.eye(len(weights))
        weights += np.linalg.solve(bend, slope)
    said = np.clip(1 / (1 + np.exp(-design @ weights)), 1e-9, 1 - 1e-9)
    _export(weights, categories, model)
    return {
        "log_loss": float(-np.mean(late * np.log(said) + (1 - late) * np.log(1 - said))),
        "rows": len(late),
    }


def _design(table: Any, categories: dict[str, list[str]]) -> np.ndarray[Any, Any]:
    """One column for each category, each scaled number, and one of ones."""
    parts = []
    for name in TEXT:
        codes = np.searchsorted(categories[name][1:], table[name].to_pylist()) + 1
        parts.append(np.eye(len(categories[name]))[codes])
    numbers = [table[name].to_numpy().astype(float)[:, None] / scale for name, scale in SCALE.items()]
    return np.hstack([*parts, *numbers, np.ones((table.num_rows, 1))])


def _export(weights: np.ndarray[Any, Any], categories: dict[str, list[str]], model: Path) -> None:
    sizes = [len(categories[name]) for name in TEXT]
    carrier, origin, rest = np.split(weights.astype(np.float32), np.cumsum(sizes))
    hour, distance, bias = rest / np.array([*SCALE.values(), 1.0], np.float32)
    constants = {
        "carrier_weights": carrier,
        "origin_weights": origin,
        "hour_weight": hour,
        "distance_weight": distance,
        "bias": bias,
    }
    node = helper.make_node
    nodes = [
        node("Gather", ["carrier_weights", "carrier"], ["a"]),
        node("Gather", ["origin_weights", "origin"], ["b"]),
        node("Cast", ["hour"], ["hours"], to=TensorProto.FLOAT),
        node("Mul", ["hours", "hour_weight"], ["c"]),
        node("Mul", ["distance", "distance_weight"], ["d"]),
        node("Sum", ["a", "b", "c", "d", "bias"], ["score"]),
        node("Sigmoid", ["score"], ["probability"]),
    ]
    tensor = helper.make_tensor_value_info
    inputs = [tensor(name, TensorProto.INT64, ["rows"]) for name in (*TEXT, "hour")]
    graph = helper.make_graph(
        nodes,
        "late",
        [*inputs, tensor("distance", TensorProto.FLOAT, ["rows"])],
        [tensor("probability", TensorProto.FLOAT, ["rows"])],
        [numpy_helper.from_array(np.asarray(value, np.float32), name) for name, value in constants.items()],
    )
    built = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    onnx.checker.check_model(built, full_check=True)
    onnx.save(built, model / "model.onnx")
    text = [
        {"name": name, "datatype": "BYTES", "categories": categories[name], "fallback": OTHER}
        for name in TEXT
    ]
    numbers = [
        {"name": "hour", "datatype": "INT64", "min": 0, "max": 24},
        {"name": "distance", "datatype": "FP32", "min": 0},
    ]
    signature = {
        "format": 1,
        "inputs": [*text, *numbers],
        "outputs": [{"name": "probability", "datatype": "FP32", "min": 0, "max": 1}],
    }
    (model / "signature.json").write_text(json.dumps(signature, indent=1) + "\n", encoding="utf-8")
