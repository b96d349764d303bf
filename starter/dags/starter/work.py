"""The stages: plain functions without muster. A stage returns the metrics of its version."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

COLUMNS = ("area", "rooms")
ANSWER = "price"


def rows(rows: Path, *, count: int) -> dict[str, float]:
    """Write rows.csv into the output `rows`. Here the rows are random: read your own data instead."""
    draw = random.Random(0)
    lines = [",".join((*COLUMNS, ANSWER))]
    for _ in range(count):
        area, number = draw.uniform(30, 150), draw.randint(1, 6)
        price = 2.5 * area + 10 * number + draw.gauss(0, 10)
        lines.append(f"{area:.1f},{number},{price:.1f}")
    (rows / "rows.csv").write_text("\n".join(lines) + "\n")
    return {"rows": count}


def train(rows: Path, model: Path) -> dict[str, float]:
    """Fit a line to four of five rows, measure it on the fifth, and write a model that the server can load."""
    import numpy as np

    table = np.loadtxt(rows / "rows.csv", delimiter=",", skiprows=1)
    held_out = np.arange(len(table)) % 5 == 0
    known = np.column_stack([table[:, :-1], np.ones(len(table))])
    answers = table[:, -1]
    weights, *_ = np.linalg.lstsq(known[~held_out], answers[~held_out], rcond=None)
    error = np.abs(known[held_out] @ weights - answers[held_out]).mean()
    guess = np.abs(answers[~held_out].mean() - answers[held_out]).mean()
    save(model, weights.tolist())
    return {"error": float(error), "error_baseline": float(guess)}


def save(model: Path, weights: Sequence[float]) -> None:
    """Write model.onnx, and signature.json, against which the server checks every request."""
    from onnx import TensorProto, checker, helper, save as save_onnx

    inputs, output = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows"]) for name in names]
        for names in (COLUMNS, (ANSWER,))
    ]
    names = [*(f"weight_{name}" for name in COLUMNS), "constant"]
    numbers = [
        helper.make_tensor(name, TensorProto.FLOAT, [], [weight])
        for name, weight in zip(names, weights, strict=True)
    ]
    parts = [f"part_{name}" for name in COLUMNS]
    nodes = [
        helper.make_node("Mul", [name, f"weight_{name}"], [part])
        for name, part in zip(COLUMNS, parts, strict=True)
    ]
    nodes.append(helper.make_node("Sum", [*parts, "constant"], [ANSWER]))
    graph = helper.make_graph(nodes, "starter", inputs, output, numbers)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    checker.check_model(made)
    save_onnx(made, model / "model.onnx")
    column = {"datatype": "FP32", "shape": [-1]}
    signature = {
        "format": 1,
        "inputs": [{"name": name, **column, "min": 0} for name in COLUMNS],
        "outputs": [{"name": ANSWER, **column}],
    }
    (model / "signature.json").write_text(json.dumps(signature, indent=1))
