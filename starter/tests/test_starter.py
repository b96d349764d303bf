"""Tests of the Dag `starter`: its first stage alone, and the whole Dag from rows to a prediction."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

PROJECT = Path(__file__).parents[1]
DAGS = PROJECT / "dags"
sys.path.insert(0, str(DAGS))  # a Dag's folder is a package


def test_rows(tmp_path: Path) -> None:
    from starter.work import rows

    assert rows(tmp_path, count=50) == {"rows": 50}
    head, *lines = (tmp_path / "rows.csv").read_text().splitlines()
    assert head == "area,rooms,price"
    assert len(lines) == 50


def test_from_rows_to_a_prediction(tmp_path: Path) -> None:
    home = {**os.environ, "MUSTER_HOME": str(tmp_path)}  # the test has its own versions and jobs

    def muster(*words: str, check: bool = True) -> str:
        done = subprocess.run(
            ["muster", *words], cwd=PROJECT, env=home, stdout=subprocess.PIPE, text=True, check=check
        )
        return done.stdout

    try:
        run = json.loads(muster("run", "starter", "--dags", str(DAGS), "--param", "count=200", "--json"))
        train = next(stage for stage in run["stages"] if stage["task_id"] == "train")
        assert train["metrics"]["error"] < train["metrics"]["error_baseline"] / 2
        request = urllib.request.Request(
            f"{run['deployments'][0]['url']}/v1/models/starter:predict",
            json.dumps({"inputs": {"area": [80], "rooms": [3]}}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as answer:
            assert "price" in json.load(answer)["outputs"]
    finally:
        muster("deployments", "retire", "starter", check=False)  # a failed run deploys nothing
