"""Trains the classifier on a gang, calibrates and exports it, and measures it beside a baseline."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flights import table, tracking
from flights.assess import assess, predict, reliability
from flights.export import export
from flights.fit import Plan, Tensors, baseline, calibrate, joined, probabilities, run_epochs
from flights.network import DROPOUT, EMBEDDING, HIDDEN, LateNet

HELD_EVERY = 10
"""Every tenth day of the training months is held back: epochs are judged and the model is calibrated on it."""

TOLERANCE = 1e-5
"""How far the exported model may be from the trained one in any answer."""


def train(
    train: list[Path],
    test: list[Path],
    model: Path,
    checkpoints: Path,
    *,
    epochs: int = 4,
    batch: int = 2048,
    rate: float = 0.004,
    seed: int = 7,
    hidden: int = HIDDEN,
    embedding: int = EMBEDDING,
    dropout: float = DROPOUT,
) -> dict[str, float]:
    """Train on the months of `train`, measure on those of `test`, and write the exported model into `model`.

    :param epochs: passes over the training rows.
    :param batch: rows a step, of all ranks together.
    :param rate: the highest learning rate.
    :param hidden: `embedding` and `dropout`: those of :class:`LateNet`.
    :return: on rank 0 the metrics on `test`, with the baseline's; nothing on the others.
    :raises ValueError: the rows or parameters do not allow training.
    :raises ArithmeticError: the exported model's answers differ from the trained one's.
    """
    plan = Plan(epochs=epochs, batch=batch, rate=rate, seed=seed)
    flights = table.read(train)
    categories = table.vocabularies(flights)
    rows, held_rows = split(table.encode(flights, categories))
    with joined() as rank:
        fitted, held = Tensors.of(rows, rank.device), Tensors.of(held_rows, rank.device)
        torch.manual_seed(seed)
        sizes = table.sizes(categories)
        network = LateNet(sizes, hidden=hidden, embedding=embedding, dropout=dropout).to(rank.device)
        network.fit_scale(fitted.numbers)
        board = tracking.Board(model / "tensorboard") if rank.first else None
        history = run_epochs(network, fitted, held, plan, rank, checkpoints, board)
    if not rank.first:
        return {}
    calibrate(network, held)
    export(network, categories, model)
    simple = baseline(fitted, table.sizes(categories), plan)
    calibrate(simple, held)
    metrics = report(network, simple, table.read(test), categories, model)
    metrics["rows_train"] = len(flights)
    tracking.record(asdict(plan), history, metrics)
    return metrics


def split(rows: table.Rows) -> tuple[table.Rows, table.Rows]:
    """Hold back every tenth day. Days are kept whole: flights of one day share its weather and its delays."""
    days = np.unique(rows.day)
    if len(days) < HELD_EVERY:
        raise ValueError(f"the training months hold {len(days)} days: need {HELD_EVERY} to hold one back")
    held = np.isin(rows.day, days[HELD_EVERY - 1 :: HELD_EVERY])
    return rows.take(~held), rows.take(held)


def report(
    network: LateNet, simple: LateNet, flights: Any, categories: dict[str, list[str]], model: Path
) -> dict[str, float]:
    """Measure the exported model and the baseline on the test months; write ``report.json`` beside the model."""
    rows = table.encode(flights, categories)
    tensors = Tensors.of(rows, network.mean.device)
    answers = predict(model, flights)
    difference = float(np.abs(answers - probabilities(network, tensors)).max())
    if not difference <= TOLERANCE:
        raise ArithmeticError(
            f"model.onnx answers up to {difference:.2g} away from the network it was exported from"
        )
    metrics = assess(answers, rows.late)
    beside = {
        f"{name}_baseline": value for name, value in assess(probabilities(simple, tensors), rows.late).items()
    }
    bins = reliability(answers, rows.late)
    (model / "report.json").write_text(
        json.dumps({**metrics, **beside, "reliability": bins}, indent=1) + "\n"
    )
    print(
        f"AUC {metrics['auc']:.4f} on {len(rows):,} flights (logistic regression {beside['auc_baseline']:.4f})",
        flush=True,
    )
    for each in bins:
        print(
            f"  predicted {each['predicted']:6.1%}  observed {each['observed']:6.1%}  of {each['rows']:,} flights"
        )
    return {**metrics, **beside, "onnx_difference": difference, "rows_test": len(rows)}
