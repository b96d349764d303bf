"""Runs in the image report: makes the card of a model that the train probe trained."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from flights_report.card import render

HOSTILE = "<script>alert(1)</script><!-- title -->"


def lineage(folder: Path, *, auc: float) -> dict[str, Any]:
    """Where a model comes from, as muster tells it; one name in it is hostile."""
    months = {
        name: [{"address": f"volume://f/features@{number}", "digest": f"b3:{number:064}", "partition": month}]
        for number, name, month in ((1, "train", "2013-01"), (2, "test", "2013-02"))
    }
    metrics = json.loads((folder / "model" / "report.json").read_text())
    numbers = {name: value for name, value in metrics.items() if name != "reliability"}
    record = {
        "digest": f"b3:{3:064}",
        "partition": "2013-02",
        "entrypoint": "flights.train:train",
        "origin": {"dag_id": "flights", "run_id": HOSTILE, "task_id": "train"},
        "job_id": "train-1",
        "code": f"b3:{4:064}",
        "image": "train",
        "image_digest": f"b3:{5:064}",
        "params": {"epochs": 4},
        "inputs": months,
        "metrics": {**numbers, "auc": auc or numbers["auc"]},
    }
    parent = {
        "version": "volume://f/features@1",
        "digest": f"b3:{1:064}",
        "depth": 1,
        "reader": "",
        "name": "train",
        "partition": "2013-01",
        "made_by": "flights.etl:features",
        "code": None,
        "image": "",
        "image_digest": "",
    }
    return {"version": "volume://f/model@1", "record": record, "ancestors": [parent]}


def make(folder: Path, cards: Path, *, auc: float = 0.0) -> dict[str, Any]:
    """Make the card and return its figures, with what its files are."""
    cards.mkdir()
    told = render(
        [folder / "model"],
        [folder / "data-0" / "test"],
        cards,
        lineage=[lineage(folder, auc=auc)],
        test_versions=["volume://f/features@2"],
    )
    made = cards / "2013-02"
    return {
        "told": told,
        "card": json.loads((made / "card.json").read_text()),
        "page": (made / "card.html").read_text(),
        "files": {each.name: hashlib.sha256(each.read_bytes()).hexdigest() for each in made.iterdir()},
    }


if __name__ == "__main__":
    where, cards, *auc = sys.argv[1:]
    print(json.dumps(make(Path(where), Path(cards), auc=float(*auc or [0]))))
