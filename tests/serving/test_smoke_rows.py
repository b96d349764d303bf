"""Smoke requests of rows: one for each of some rows, as the model's signature takes them; what it refuses is named."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.serving.python_model import write_signature

from muster.core.shipped import shipped

pytestmark = [pytest.mark.slow, pytest.mark.data]

SCRIPT = """
import json, sys
from pathlib import Path
import pyarrow as pa, pyarrow.csv, pyarrow.parquet as pq
from muster_serving.errors import ServingError
from muster_serving.scoring import ScoringError
from muster_serving.smoke import write

root = Path(sys.argv[1])
rows = pa.table({"key": range(1000), "x": [n / 2 for n in range(1000)], "zone": ["a", "b"] * 500, "pair": [[n, n + 1] for n in range(1000)]})
few = rows.slice(0, 3)


def made(name, *tables, most=4, kind="parquet"):
    folder, out = root / name, root / f"{name}-out"
    folder.mkdir(), out.mkdir()
    for number, table in enumerate(tables):
        file = folder / f"{number}.{kind}"
        pq.write_table(table, file, row_group_size=100) if kind == "parquet" else pyarrow.csv.write_csv(table.drop(["pair"]), file)
    try:
        if write(root / ("model" if kind == "parquet" else "plain"), [folder], out, most=most) is not None:
            return "metrics of a smoke test would stand in `muster runs ls` where the model's are"
    except (ScoringError, ServingError) as error:
        return str(error)
    return json.loads((out / "smoke.json").read_text())


print(json.dumps({
    "spread": made("spread", rows.slice(0, 600), rows.slice(600)),
    "few": made("few", few, most=20),
    "csv": made("csv", rows, kind="csv"),
    "missing": made("missing", few.drop(["zone"])),
    "null": made("null", few.set_column(1, "x", pa.array([1.0, None, 2.0]))),
    "other": made("other", few.set_column(2, "zone", pa.array(["a", "moon", "b"]))),
    "none": made("none", few.slice(0, 0)),
}))
"""
INPUTS: list[dict[str, object]] = [
    {"name": "x", "datatype": "FP32"},
    {"name": "zone", "datatype": "BYTES", "categories": ["a", "b"]},
    {"name": "pair", "datatype": "INT64", "shape": [-1, 2]},
]


@pytest.fixture(scope="module")
def made(python: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    root = tmp_path_factory.mktemp("smoke")
    for name, inputs in (("model", INPUTS), ("plain", INPUTS[:2])):
        (root / name).mkdir()
        write_signature(root / name, inputs, [{"name": "y", "datatype": "FP32"}])
    environment = {**os.environ, "PYTHONPATH": str(shipped("serving"))}
    ended = subprocess.run(
        [python("serve"), "-c", SCRIPT, root], env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def test_rows_at_even_distances_become_requests(made: dict[str, Any]) -> None:
    names = ["0.parquet, row 0", "0.parquet, row 250", "0.parquet, row 500", "1.parquet, row 150"]
    assert [each["name"] for each in made["spread"]] == names
    assert made["spread"][3]["inputs"] == {"x": [375.0], "zone": ["a"], "pair": [[750, 751]]}


def test_no_more_than_there_are_and_of_a_csv_file_the_first(made: dict[str, Any]) -> None:
    assert [each["inputs"]["x"] for each in made["few"]] == [[0.0], [0.5], [1.0]]
    assert [each["name"] for each in made["csv"]] == [f"0.csv, row {n}" for n in range(4)]


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("missing", "0.parquet has no column 'zone'; it has key, x, pair"),
        ("null", "0.parquet, row 1: input 'x': found None at position 0, expected FP32"),
        ("other", "0.parquet, row 1: input 'zone': found text 'moon', expected one of a, b"),
        ("none", "0.parquet: no rows, and a smoke test needs one"),
    ],
)
def test_what_the_signature_refuses_is_named(made: dict[str, Any], case: str, says: str) -> None:
    assert made[case] == says
