"""The figures of a model card: overall and by group, calibration, ROC, importance; plain numbers, no pictures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from flights import table
from flights.assess import assess, auc, load, reliability

RESAMPLES = 200
REPEATS = 5
EITHER = 10
SAMPLE = 10_000
"""Rows on which importance is measured: the same before and after a shuffle, so few are enough."""

GROUPS: dict[str, tuple[str, ...]] = {
    "airline, route, plane type": (
        "carrier",
        "origin",
        "dest",
        "dest_timezone",
        "distance",
        "seats",
        "engine",
        "plane_age",
    ),
    "hour and weekday": ("hour", "minute", "weekday", "planned_traffic"),
    "how the airport runs now": tuple(
        f"airport_{what}" for what in ("departures", "delay", "overdue", "wait")
    ),
    "how the airline runs here now": tuple(
        f"airline_{what}" for what in ("departures", "delay", "overdue", "wait")
    ),
    "flights to the same place now": tuple(
        f"destination_{what}" for what in ("departures", "delay", "overdue", "wait")
    ),
    "this plane's day so far": tuple(f"plane_{what}" for what in ("departures", "delay", "overdue", "wait")),
    "punctuality in four weeks": ("number_flown", "number_late", "route_flown", "route_late"),
    "weather": ("dewp", "humid", "wind_speed", "wind_gust", "precip", "visib"),
}
"""Columns that tell of one thing are shuffled together: shuffled one by one, each hides behind the others."""


def months(folders: list[Path], names: list[str]) -> tuple[pa.Table, np.ndarray]:
    """Read the test's flights, with the month of each row."""
    tables = [table.read([folder]) for folder in folders]
    return pa.concat_tables(tables), np.repeat(names, [len(each) for each in tables])


def interval(probability: np.ndarray, late: np.ndarray, day: np.ndarray, *, seed: int) -> list[float]:
    """Return a 95 % interval of the AUC: a bootstrap over whole days, since flights of a day share its weather.

    The percentile interval of Efron and Tibshirani, An Introduction to the Bootstrap (1993), ch. 13.
    """
    draw = np.random.default_rng(seed)
    _, rank = np.unique(probability, return_inverse=True)
    _, place = np.unique(day, return_inverse=True)
    days = place.max() + 1
    found = []
    for _ in range(RESAMPLES):
        weight = np.bincount(draw.integers(0, days, days), minlength=days)[place]
        late_at = np.bincount(rank, weight * late)
        punctual_at = np.bincount(rank, weight * (1 - late))
        beaten = np.cumsum(punctual_at) - punctual_at / 2  # a tie counts half
        found.append((late_at * beaten).sum() / (late_at.sum() * punctual_at.sum()))
    return [float(value) for value in np.percentile(found, [2.5, 97.5])]


def by(group: np.ndarray, probability: np.ndarray, late: np.ndarray) -> Iterator[dict[str, Any]]:
    """Yield rows, observed and predicted share and metrics of each group.

    No AUC and no ECE where fewer than :data:`EITHER` flights were late, or were punctual.
    """
    for name in np.unique(group):
        mine = group == name
        p, y = probability[mine], late[mine]
        enough = min(y.sum(), len(y) - y.sum()) >= EITHER
        metrics = (
            assess(p, y) if enough else {"brier": float(np.mean((p - y) ** 2)), "auc": None, "ece": None}
        )
        yield {
            "name": str(name),
            "rows": int(mine.sum()),
            "observed": float(y.mean()),
            "predicted": float(p.mean()),
            **{key: metrics[key] for key in ("auc", "brier", "ece")},
        }


def calibration(probability: np.ndarray, late: np.ndarray) -> list[dict[str, float]]:
    """Return the reliability bins with the standard error of the observed rate."""
    rows = reliability(probability, late)
    return [
        {**row, "error": float(np.sqrt(row["observed"] * (1 - row["observed"]) / row["rows"]))}
        for row in rows
    ]


def roc(probability: np.ndarray, late: np.ndarray, *, points: int = 200) -> dict[str, list[float]]:
    """Return the ROC curve: the share of late flights found against the share of false alarms."""
    order = np.argsort(-probability, kind="stable")
    found = np.append(0, np.cumsum(late[order]) / late.sum())
    false = np.append(0, np.cumsum(1 - late[order]) / (1 - late).sum())
    at = np.searchsorted(false, np.linspace(0, 1, points))
    at = np.minimum(at, len(false) - 1)
    return {"false_alarms": false[at].round(6).tolist(), "found": found[at].round(6).tolist()}


def importance(
    model: Path, flights: pa.Table, groups: dict[str, tuple[str, ...]], *, seed: int
) -> list[dict[str, Any]]:
    """Return the loss of AUC when a column, or several together, are shuffled; the greatest loss first.

    Permutation importance (Breiman, Random Forests, Machine Learning 45, 2001; for any model Fisher,
    Rudin and Dominici, JMLR 20, 2019), on at most :data:`SAMPLE` rows of the test, mean and standard
    deviation of :data:`REPEATS` shuffles.
    """
    draw = np.random.default_rng(seed)
    rows = flights.take(np.sort(draw.permutation(len(flights))[:SAMPLE]))
    answer, categories = load(model)
    columns, late = table.columns(rows, categories), rows[table.TARGET].to_numpy()
    whole = auc(answer(columns), late)
    found = []
    for name, members in groups.items():
        losses = []
        for _ in range(REPEATS):
            order = draw.permutation(len(rows))
            shuffled = {**columns, **{each: columns[each][order] for each in members}}
            losses.append(whole - auc(answer(shuffled), late))
        found.append({"name": name, "loss": float(np.mean(losses)), "spread": float(np.std(losses, ddof=1))})
    return sorted(found, key=lambda each: -each["loss"])


def histogram(probability: np.ndarray, late: np.ndarray, *, bins: int = 40) -> dict[str, list[float]]:
    """Return the histograms of the probabilities of late and of punctual flights."""
    edges = np.linspace(0, 1, bins + 1)
    return {
        "edges": edges.round(4).tolist(),
        "late": np.histogram(probability[late > 0], edges)[0].tolist(),
        "punctual": np.histogram(probability[late == 0], edges)[0].tolist(),
    }
