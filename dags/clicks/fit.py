"""Logistic regression on the airport, the hour and the last hours' departures, written as ``model.onnx`` and ``signature.json``."""

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
SCALE = {"hour": 24.0, "departures": 100.0, "delay": 60.0}
OTHER = "OTHER"


def fit(history: Path, model: Path) -> dict[str, float]:
    """Fit by Newton's method (iteratively reweighted least squares), and return the log loss, and that without the last hours."""
    table = pq.read_table(history / "rows.parquet")
    airports = [OTHER, *sorted(set(table["origin"].to_pylist()))]
    codes = np.searchsorted(airports[1:], table["origin"].to_pylist()) + 1
    numbers = [table[name].to_numpy().astype(float)[:, None] / scale for name, scale in SCALE.items()]
    design = np.hstack([np.eye(len(airports))[codes], np.ones((table.num_rows, 1)), *numbers])
    late = table["late"].to_numpy().astype(float)
    weights, loss = _newton(design, late)
    _, without = _newton(design[:, :-2], late)
    _export(weights.astype(np.float32), airports, model)
    return {"log_loss": loss, "log_loss_without": without, "rows": len(late)}


def _newton(design: np.ndarray[Any, Any], late: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], float]:
    weights = np.zeros(design.shape[1])
    for _ in range(STEPS):
        said = 1 / (1 + np.exp(-design @ weights))
        slope = design.T @ (late - said) - RIDGE * weights
        bend = (design * (said * (1 - said))[:, None]).T @ design + RIDGE * np.eye(len(weights))
        weights += np.linalg.solve(bend, slope)
    said = np.clip(1 / (1 + np.exp(-design @ weights)), 1e-9, 1 - 1e-9)
    return weights, float(-np.mean(late * np.log(said) + (1 - late) * np.log(1 - said)))


def _export(weights: np.ndarray[Any, Any], airports: list[str], model: Path) -> None:
    airport, bias, rest = np.split(weights, [len(airports), len(airports) + 1])
    constants = {"airport_weights": airport, "bias": bias}
    nodes = [
        helper.make_node("Gather", ["airport_weights", "origin"], ["from_airport"]),
        helper.make_node("Cast", ["hour"], ["hour_number"], to=TensorProto.FLOAT),
    ]
    for (name, scale), weight in zip(SCALE.items(), rest, strict=True):
        constants[f"{name}_weight"] = weight / scale
        given = "hour_number" if name == "hour" else name
        nodes.append(helper.make_node("Mul", [given, f"{name}_weight"], [f"from_{name}"]))
    terms = ["from_airport", *(f"from_{name}" for name in SCALE), "bias"]
    nodes += [
        helper.make_node("Sum", terms, ["score"]),
        helper.make_node("Sigmoid", ["score"], ["probability"]),
    ]
    whole = [helper.make_tensor_value_info(name, TensorProto.INT64, ["rows"]) for name in ("origin", "hour")]
    real = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows"]) for name in ("departures", "delay")
    ]
    graph = helper.make_graph(
        nodes,
        "late",
        [*whole, *real],
        [helper.make_tensor_value_info("probability", TensorProto.FLOAT, ["rows"])],
        [numpy_helper.from_array(np.asarray(value, np.float32), name) for name, value in constants.items()],
    )
    built = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    onnx.checker.check_model(built, full_check=True)
    onnx.save(built, model / "model.onnx")
    signature = {
        "format": 1,
        "inputs": [
            {"name": "origin", "datatype": "BYTES", "categories": airports, "fallback": OTHER},
            {"name": "hour", "datatype": "INT64", "min": 0, "max": 24},
            {"name": "departures", "datatype": "FP32", "min": 0},
            {"name": "delay", "datatype": "FP32"},
        ],
        "outputs": [{"name": "probability", "datatype": "FP32", "min": 0, "max": 1}],
    }
    (model / "signature.json").write_text(json.dumps(signature, indent=1) + "\n", encoding="utf-8")
