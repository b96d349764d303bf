"""The card as one HTML page that works offline: no script, no link, pictures inside."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

METRICS = {
    "auc": ("AUC", "how often a late flight gets the higher probability; 0.5 is chance", True),
    "brier": ("Brier score", "mean squared error of the probability", False),
    "log_loss": ("log loss", "mean negative log likelihood", False),
    "ece": ("ECE", "how far the probability is off, on average over tenths of the flights", False),
}
DIGITS = 12


def html_of(card: Mapping[str, Any], pictures: Mapping[str, str]) -> str:
    """Return the page.

    :param pictures: SVG by name: calibration, ranking, airlines, months, importance.
    """
    template = (Path(__file__).parent / "card.html").read_text(encoding="utf-8")
    parts = {
        "title": escape(f"Model card: {_short(card['version'])}"),
        "summary": _summary(card),
        "tiles": _tiles(card),
        "metrics": _metrics(card),
        "worst": _worst(card),
        "shift": _shift(card),
        "tested": escape(span(card["lineage"]["record"]["inputs"]["test"])),
        "trained": escape(span(card["lineage"]["record"]["inputs"]["train"])),
        "airline_rows": _group_rows(sorted(card["airlines"], key=lambda row: -row["rows"])),
        "month_rows": _group_rows(card["months"]),
        "lineage": _lineage(card),
        "ancestors": _ancestors(card),
        **pictures,
    }
    return re.sub(r"<!-- (\w+) -->", lambda mark: parts[mark[1]], template)


def span(versions: Sequence[Mapping[str, Any]]) -> str:
    """Return the first and the last month of some versions."""
    names = sorted(str(each["partition"]) for each in versions)
    return names[0] if names[0] == names[-1] else f"{names[0]} to {names[-1]}"


def _summary(card: Mapping[str, Any]) -> str:
    auc, base = card["metrics"]["auc"], card["baseline"]["auc"]
    better = "better" if auc > base else "worse"
    return (
        f"On {card['rows']:,} flights it had not seen, of which {card['late_rate']:.0%} came late, it ranks "
        f"{abs(auc - base):.3f} of AUC {better} than logistic regression on the same columns."
    )


def _tiles(card: Mapping[str, Any]) -> str:
    low, high = card["auc_interval"]
    tiles = [
        (f"{card['metrics']['auc']:.3f}", "AUC", f"95 % {low:.3f} to {high:.3f}"),
        (
            f"{card['metrics']['auc'] - card['baseline']['auc']:+.3f}",
            "AUC over the baseline",
            f"which has {card['baseline']['auc']:.3f}",
        ),
        (f"{card['metrics']['ece']:.3f}", "calibration error", f"baseline {card['baseline']['ece']:.3f}"),
        (f"{card['rows']:,}", "test flights", f"{card['late_rate']:.1%} late"),
    ]
    return "".join(
        f'<div class="tile"><b>{escape(value)}</b><span>{escape(name)}</span><small>{escape(note)}</small></div>'
        for value, name, note in tiles
    )


def _metrics(card: Mapping[str, Any]) -> str:
    rows = []
    for key, (name, meaning, high) in METRICS.items():
        mine, base = card["metrics"][key], card["baseline"][key]
        wins = (mine > base) == high
        rows.append(
            f"<tr><th>{name}<small>{meaning}; {'more' if high else 'less'} is better</small></th>"
            f'<td class="{"win" if wins else ""}">{mine:.4f}</td>'
            f'<td class="{"" if wins else "win"}">{base:.4f}</td></tr>'
        )
    return "".join(rows)


def _group_rows(rows: Iterable[Mapping[str, Any]]) -> str:
    return "".join(
        f"<tr><th>{escape(row['label'])}</th><td>{row['rows']:,}</td><td>{row['observed']:.1%}</td>"
        f"<td>{row['predicted']:.1%}</td><td>{_number(row['auc'])}</td><td>{_number(row['ece'])}</td></tr>"
        for row in rows
    )


def _worst(card: Mapping[str, Any]) -> str:
    known = [row for row in card["airlines"] if row["auc"] is not None and row["rows"] >= 400]
    ranked = min(known, key=lambda row: row["auc"])
    off = max(known, key=lambda row: abs(row["predicted"] - row["observed"]))
    return escape(
        f"Of the airlines with 400 flights or more, it ranks worst for {ranked['label']} (AUC {ranked['auc']:.3f}), "
        f"and its probabilities are furthest off for {off['label']}: {off['predicted']:.0%} predicted, "
        f"{off['observed']:.0%} came late."
    )


def _shift(card: Mapping[str, Any]) -> str:
    said = sum(row["predicted"] * row["rows"] for row in card["months"]) / card["rows"]
    gap = card["late_rate"] - said
    if abs(gap) < 0.005:
        return "Over all test flights the probabilities are right on average, within half a point."
    side = "low" if gap > 0 else "high"
    return (
        f"Over all test flights the probabilities are {abs(gap) * 100:.1f} points too {side}: {said:.1%} predicted, "
        f"{card['late_rate']:.1%} came late."
    )


def _lineage(card: Mapping[str, Any]) -> str:
    record = card["lineage"]["record"]
    origin = record["origin"]
    facts = {
        "version": card["version"],
        "digest": record["digest"],
        "made by": f"{record['entrypoint']} in Dag {origin['dag_id']}, run {origin['run_id']}, task {origin['task_id']}",
        "job": record["job_id"],
        "code snapshot": record["code"],
        "image": f"{record['image']}, lock {record['image_digest']}",
        "params": ", ".join(f"{name} = {value}" for name, value in record["params"].items()),
    }
    rows = [f"<tr><th>{name}</th><td>{escape(str(value))}</td></tr>" for name, value in facts.items()]
    for name, versions in record["inputs"].items():
        rows.append(
            f"<tr><th>input {escape(name)}</th><td>{escape(span(versions))}, {len(versions)} versions</td></tr>"
        )
    return "".join(rows)


def _ancestors(card: Mapping[str, Any]) -> str:
    rows = []
    for each in sorted(card["lineage"]["ancestors"], key=lambda each: (each["depth"], each["name"])):
        cells = (
            each["name"],
            _short(each["version"]),
            each["partition"] or "",
            _digest(each["digest"]),
            each["made_by"] or "not in this store",
            _digest(each["code"] or ""),
            f"{each['image']} {_digest(each['image_digest'])}",
        )
        rows.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    return "".join(rows)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _short(address: str) -> str:
    return address.removeprefix("volume://")


def _digest(digest: str) -> str:
    return digest.removeprefix("b3:")[:DIGITS]
