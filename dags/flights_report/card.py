"""Makes model cards: measures each model on its own test, draws, and writes one folder for each card."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flights import table
from flights.assess import assess, predict

from flights_report import figures, measure, page

AIRLINES = {
    "9E": "Endeavor",
    "AA": "American",
    "AS": "Alaska",
    "B6": "JetBlue",
    "DL": "Delta",
    "EV": "ExpressJet",
    "F9": "Frontier",
    "FL": "AirTran",
    "HA": "Hawaiian",
    "MQ": "Envoy",
    "OO": "SkyWest",
    "UA": "United",
    "US": "US Airways",
    "VX": "Virgin America",
    "WN": "Southwest",
    "YV": "Mesa",
}

AGREEMENT = 1e-6
"""How far the AUC measured here may be from the recorded one: another ONNX Runtime may round otherwise."""

MINUTES_A_DAY = 24 * 60


def render(
    models: list[Path],
    test: list[Path],
    cards: Path,
    *,
    lineage: list[dict[str, Any]],
    test_versions: list[str],
    seed: int = 7,
) -> dict[str, float]:
    """Write ``PARTITION/card.html``, its pictures and ``card.json`` for every model.

    :param test: the versions of the models' test flights; `test_versions` are their addresses.
    :param lineage: one document for each model, as :func:`muster.volumes.lineage.document` writes it.
    :param seed: for shuffles and resamples.
    :return: the number of cards and of the rows read for them.
    :raises ArithmeticError: a model's AUC differs from the recorded one.
    """
    folders = dict(zip(test_versions, test, strict=True))
    rows = 0
    for model, origin in zip(models, lineage, strict=True):
        card = describe(model, origin, folders, seed=seed)
        write(card, cards / (card["partition"] or "unpartitioned"))
        rows += card["rows"]
        print(
            f"{card['version']}: AUC {card['metrics']['auc']:.4f}, ECE {card['metrics']['ece']:.4f}",
            flush=True,
        )
    return {"cards": len(models), "rows": rows}


def describe(
    model: Path, lineage: Mapping[str, Any], folders: Mapping[str, Path], *, seed: int
) -> dict[str, Any]:
    """Measure one model on its test flights; return plain JSON."""
    record = lineage["record"]
    tested = record["inputs"]["test"]
    flights, month = measure.months(
        [folders[each["address"]] for each in tested], [each["partition"] for each in tested]
    )
    late = flights[table.TARGET].to_numpy()
    probability = predict(model, flights)
    metrics = assess(probability, late)
    if abs(metrics["auc"] - record["metrics"]["auc"]) > AGREEMENT:
        raise ArithmeticError(
            f"AUC of {lineage['version']} is {metrics['auc']:.6f} here and {record['metrics']['auc']:.6f} in its "
            "record: were these flights its test?"
        )
    day = flights["scheduled_departure"].to_numpy() // MINUTES_A_DAY
    by_airline = measure.by(np.asarray(flights["carrier"]), probability, late)
    single = {name: (name,) for group in measure.GROUPS.values() for name in group}
    return {
        "version": lineage["version"],
        "partition": record["partition"],
        "rows": len(flights),
        "late_rate": float(late.mean()),
        "metrics": metrics,
        "auc_interval": measure.interval(probability, late, day, seed=seed),
        "baseline": _baseline(record["metrics"]),
        "calibration": measure.calibration(probability, late),
        "roc": measure.roc(probability, late),
        "histogram": measure.histogram(probability, late),
        "airlines": [{**row, "label": AIRLINES.get(row["name"], row["name"])} for row in by_airline],
        "months": [{**row, "label": row["name"]} for row in measure.by(month, probability, late)],
        "importance": {
            "groups": measure.importance(model, flights, measure.GROUPS, seed=seed),
            "columns": measure.importance(model, flights, single, seed=seed),
        },
        "lineage": lineage,
    }


def write(card: Mapping[str, Any], folder: Path) -> None:
    """Write one card into a folder of its own."""
    folder.mkdir(parents=True)
    pictures = {name: figures.save(each, folder, name) for name, each in figures.draw(card).items()}
    (folder / "card.json").write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")
    (folder / "card.html").write_text(page.html_of(card, pictures), encoding="utf-8")


def _baseline(metrics: Mapping[str, float]) -> dict[str, float]:
    suffix = "_baseline"
    return {name.removesuffix(suffix): value for name, value in metrics.items() if name.endswith(suffix)}
