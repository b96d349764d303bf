"""Measures predicted probabilities: ranking, calibration, and the scores of an exported model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from flights import table

BINS = 10


def score(model: Path, test: list[Path]) -> dict[str, float]:
    """Measure any exported model on the flights of `test`; the gate compares two models by this."""
    flights = table.read(test)
    probability = predict(model, flights)
    metrics = assess(probability, flights[table.TARGET].to_numpy())
    print(f"{len(probability):,} flights: {_listed(metrics)}", flush=True)
    return {**metrics, "rows": len(probability)}


def predict(model: Path, flights: Any) -> np.ndarray:
    """Return the probabilities of the exported model in folder `model` for a table's rows."""
    answer, categories = load(model)
    return answer(table.columns(flights, categories))


def load(model: Path) -> tuple[Callable[[dict[str, np.ndarray]], np.ndarray], dict[str, list[str]]]:
    """Return an exported model as a function of its columns, and the categories of its text columns."""
    import onnxruntime

    signature = json.loads((model / "signature.json").read_text())
    categories = {each["name"]: each["categories"] for each in signature["inputs"] if "categories" in each}
    session = onnxruntime.InferenceSession(model / "model.onnx", providers=["CPUExecutionProvider"])
    return lambda columns: np.asarray(session.run(["probability"], columns)[0]), categories


def assess(probability: np.ndarray, late: np.ndarray) -> dict[str, float]:
    """Return AUC, Brier score, log loss and the expected calibration error of probabilities."""
    p = np.clip(probability.astype(np.float64), 1e-7, 1 - 1e-7)
    late = late.astype(np.float64)
    return {
        "auc": auc(p, late),
        "brier": float(np.mean((p - late) ** 2)),
        "log_loss": float(-np.mean(late * np.log(p) + (1 - late) * np.log1p(-p))),
        "ece": sum(row["rows"] * abs(row["predicted"] - row["observed"]) for row in reliability(p, late))
        / len(p),
    }


def auc(probability: np.ndarray, late: np.ndarray) -> float:
    """Return the area under the ROC curve, by Mann and Whitney's ranks; equal values have the mean of their ranks.

    :raises ValueError: all rows are of one class, so there is nothing to rank.
    """
    positives = float(late.sum())
    negatives = len(late) - positives
    if not positives or not negatives:
        raise ValueError(f"of {len(late)} flights {positives:.0f} are late: the AUC needs both kinds")
    _, inverse, counts = np.unique(probability, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    return float((ranks[late > 0].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def reliability(probability: np.ndarray, late: np.ndarray, *, bins: int = BINS) -> list[dict[str, float]]:
    """Return predicted and observed rates, in `bins` groups of about equal size."""
    order = np.argsort(probability, kind="stable")
    return [
        {
            "rows": len(group),
            "predicted": float(probability[group].mean()),
            "observed": float(late[group].mean()),
        }
        for group in np.array_split(order, bins)
        if len(group)
    ]


def _listed(metrics: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())
