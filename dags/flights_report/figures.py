"""The pictures of a model card, drawn from its figures alone: the same figures give the same bytes."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

mpl.use("agg")

MODEL, OBSERVED, QUIET, INK = "#2563a8", "#d97706", "#9aa3ad", "#1f2933"
FEW = 400
"""Flights below which a group's figures are drawn pale: their AUC is uncertain by more than 0.05."""

STYLE = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": INK,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e5e9ee",
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "svg.hashsalt": "flights-report",  # without it the ids differ in each drawing
    "figure.constrained_layout.use": True,
}


def draw(card: Mapping[str, Any]) -> dict[str, Figure]:
    """Return every picture by its file's name."""
    pictures: dict[str, Callable[[Mapping[str, Any]], Figure]] = {
        "calibration": _calibration,
        "ranking": _ranking,
        "airlines": _airlines,
        "months": _months,
        "importance": _importance,
    }
    with mpl.rc_context(STYLE):
        return {name: picture(card) for name, picture in pictures.items()}


def save(figure: Figure, folder: Path, name: str) -> str:
    """Write ``NAME.png`` into the folder, and return the same picture as SVG for a page."""
    text = io.StringIO()
    with mpl.rc_context(STYLE):
        figure.savefig(folder / f"{name}.png", dpi=150, metadata={"Software": None})
        figure.savefig(text, format="svg", metadata={"Date": None})
    svg = text.getvalue()
    svg = re.sub(r'(id="|url\(#|href="#)', rf"\g<1>{name}-", svg)  # ids must differ within one page
    return svg[svg.index("<svg") :]


def _calibration(card: Mapping[str, Any]) -> Figure:
    """Draw the reliability diagram (DeGroot and Fienberg, The Statistician 32, 1983)."""
    figure = Figure(figsize=(6.2, 5.6))
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[4, 1])
    bins = card["calibration"]
    said, came = [row["predicted"] for row in bins], [row["observed"] for row in bins]
    top = min(1.0, 1.08 * max(*said, *came))
    above.plot([0, top], [0, top], color=QUIET, linestyle="--", linewidth=1, label="perfectly calibrated")
    errors = [1.96 * row["error"] for row in bins]
    above.errorbar(
        said,
        came,
        yerr=errors,
        color=MODEL,
        marker="o",
        markersize=5,
        capsize=2,
        label="a tenth of the flights",
    )
    above.set(xlim=(0, top), ylim=(0, top), ylabel="came late")
    above.set_title(f"Expected calibration error {card['metrics']['ece']:.3f}")
    above.legend(frameon=False, loc="upper left")
    _spread(below, card, top)
    for axes in (above, below):
        axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    above.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    below.set_xlabel("predicted to come late")
    return figure


def _spread(axes: Axes, card: Mapping[str, Any], top: float) -> None:
    bins = card["histogram"]
    total = np.add(bins["late"], bins["punctual"])
    axes.stairs(total, bins["edges"], fill=True, color=QUIET, alpha=0.6)
    axes.set(xlim=(0, top), ylabel="flights")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value / 1000:g}k")


def _ranking(card: Mapping[str, Any]) -> Figure:
    figure = Figure(figsize=(9.6, 4.2))
    left, right = figure.subplots(1, 2)
    curve, metrics = card["roc"], card["metrics"]
    low, high = card["auc_interval"]
    left.plot([0, 1], [0, 1], color=QUIET, linestyle="--", linewidth=1)
    left.fill_between(curve["false_alarms"], curve["found"], color=MODEL, alpha=0.08)
    left.plot(curve["false_alarms"], curve["found"], color=MODEL, linewidth=2)
    left.set(xlim=(0, 1), ylim=(0, 1), xlabel="punctual flights called late", ylabel="late flights found")
    left.set_title(f"ROC: AUC {metrics['auc']:.3f}, 95 % interval {low:.3f} to {high:.3f}")
    for axis in (left.xaxis, left.yaxis):
        axis.set_major_formatter(PercentFormatter(1, decimals=0))
    for kind, colour in (("punctual", MODEL), ("late", OBSERVED)):
        counts = np.asarray(card["histogram"][kind], float)
        right.stairs(
            counts / counts.sum(),
            card["histogram"]["edges"],
            fill=True,
            color=colour,
            alpha=0.35,
            label=f"{kind} flights",
        )
        right.stairs(counts / counts.sum(), card["histogram"]["edges"], color=colour, linewidth=1.2)
    right.set(xlim=(0, 1), xlabel="predicted to come late", ylabel="share of those flights")
    right.set_title("What the model says of either kind")
    right.legend(frameon=False)
    for axis in (right.xaxis, right.yaxis):
        axis.set_major_formatter(PercentFormatter(1, decimals=0))
    return figure


def _airlines(card: Mapping[str, Any]) -> Figure:
    return _groups(sorted(card["airlines"], key=lambda row: row["rows"]), card["metrics"]["auc"])


def _months(card: Mapping[str, Any]) -> Figure:
    return _groups(card["months"][::-1], card["metrics"]["auc"])


def _groups(rows: Sequence[Mapping[str, Any]], whole: float) -> Figure:
    """Draw predicted and observed rates, and the AUC, one line for each group."""
    figure = Figure(figsize=(9.6, 1.4 + 0.3 * len(rows)))
    left, right = figure.subplots(1, 2, sharey=True)
    for place, row in enumerate(rows):
        pale = 1.0 if row["rows"] >= FEW else 0.35
        left.plot([row["predicted"], row["observed"]], [place, place], color=QUIET, linewidth=2, alpha=pale)
        left.plot(row["predicted"], place, "o", color=MODEL, alpha=pale, label="" if place else "predicted")
        left.plot(row["observed"], place, "o", color=OBSERVED, alpha=pale, label="" if place else "came late")
        if row["auc"] is not None:
            right.plot(row["auc"], place, "o", color=MODEL, alpha=pale)
    left.set_yticks(range(len(rows)), [f"{row['label']}  {row['rows']:,}" for row in rows])
    left.set_ylim(-0.7, len(rows) - 0.3)
    left.set_title("Late flights, predicted and observed")
    left.set_xlim(left=0)
    left.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    handles = [
        left.plot([], [], "o", color=c, label=n)[0]
        for c, n in ((MODEL, "predicted"), (OBSERVED, "came late"))
    ]
    figure.legend(handles=handles, frameon=False, loc="outside lower left", ncols=2, fontsize=9)
    right.axvline(whole, color=QUIET, linestyle="--", linewidth=1)
    right.set_title(f"AUC (all together {whole:.3f})")
    return figure


def _importance(card: Mapping[str, Any]) -> Figure:
    figure = Figure(figsize=(9.6, 4.6))
    left, right = figure.subplots(1, 2)
    for axes, rows, title in (
        (left, card["importance"]["groups"], "Columns shuffled together"),
        (right, card["importance"]["columns"][:12], "One by one, the first twelve"),
    ):
        places = range(len(rows))
        axes.barh(
            places,
            [row["loss"] for row in rows],
            xerr=[row["spread"] for row in rows],
            color=MODEL,
            ecolor=INK,
            capsize=2,
            height=0.62,
        )
        axes.set_yticks(places, [row["name"] for row in rows])
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.set_title(title)
        axes.set_xlabel("AUC lost")
    return figure
