"""A signature that is written from rows: types, categories, ranges, and what cannot be described."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np  # noqa: TID253 - what a job has
import pytest

import muster
from muster.core.errors import SpecError

ROWS: dict[str, Any] = {
    "zone": ["centre", "airport"] * 4,
    "note": [f"note {n}" for n in range(8)],
    "hour": np.arange(8, dtype=np.int8),
    "area": np.array([-1.0, 3.0] * 4, np.float32),
    "trip": np.linspace(0, 1, 16).reshape(8, 2),
    "yes": [True, False] * 4,
    "code": [1, 2.5] * 4,
}


def test_a_mapping_of_columns_gives_types_categories_and_ranges(tmp_path: Path) -> None:
    made = muster.signature(
        inputs=ROWS, outputs={"probability": np.array([0.25] * 8), "fare": [7.0] * 8}, max_batch=100
    )
    made.save(tmp_path)
    assert json.loads((tmp_path / "signature.json").read_text()) == {
        "format": 1,
        "max_batch": 100,
        "inputs": [
            {"name": "zone", "datatype": "BYTES", "categories": ["airport", "centre"]},
            {"name": "note", "datatype": "BYTES"},
            {"name": "hour", "datatype": "INT8", "min": 0, "max": 11},
            {"name": "area", "datatype": "FP32", "min": -3.0, "max": 5.0},
            {"name": "trip", "datatype": "FP64", "shape": [-1, 2], "min": 0, "max": 1.5},
            {"name": "yes", "datatype": "BOOL"},
            {"name": "code", "datatype": "FP64", "min": 0.25, "max": 3.25},
        ],
        "outputs": [
            {"name": "probability", "datatype": "FP64", "min": 0, "max": 1},
            {"name": "fare", "datatype": "FP64"},
        ],
    }
    example = json.loads((tmp_path / "example.json").read_text())["inputs"]
    assert (example["zone"], example["hour"]) == (["centre", "airport"], [0, 1])
    assert example["trip"][0] == pytest.approx([0.0, 1 / 15])
    (smoke,) = made.smoke({name: column[:3] for name, column in ROWS.items()}, name="three")
    assert (smoke["name"], smoke["inputs"]["hour"]) == ("three", [0, 1, 2])
    with pytest.raises(SpecError, match="input 'note' is in the signature, and not in these rows: zone"):
        made.smoke({"zone": ["centre"]})


def test_what_is_told_counts_instead_of_what_is_seen() -> None:
    made = muster.signature(
        inputs={"zone": ["centre"] * 4, "hour": [3, 4, 5, 6]},
        outputs=np.array([1.5] * 4),
        categories={"zone": None, "hour": list(range(24))},
        ranges={"output": (0, None)},
    )
    assert made.document["inputs"] == [
        {"name": "zone", "datatype": "BYTES"},
        {"name": "hour", "datatype": "INT64", "categories": list(range(24))},
    ]
    assert made.document["outputs"] == [{"name": "output", "datatype": "FP64", "min": 0}]


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ([1.0, float("nan")], "column 'x' has 1 missing values or NaN"),
        (np.array([1.0, np.nan]), "column 'x' has 1 missing values or NaN"),
        (["a", None], "column 'x' has 1 missing values or NaN"),
        ([1.0, float("inf")], "column 'x' has values that are not finite"),
        (
            np.array(["2026-01-01"] * 2, "datetime64[s]"),
            "column 'x' has the type datetime64: a signature knows",
        ),
        (["a", 1], "column 'x' has the type int64, str: a signature knows"),
        ([], "column 'x' has no rows"),
        ("text", "inputs: column 'x' is str, expected an array"),
    ],
)
def test_what_no_request_can_hold_is_refused_by_name(column: Any, said: str) -> None:
    with pytest.raises(SpecError) as refused:
        muster.signature(inputs={"x": column}, outputs=[1.0])
    assert str(refused.value).startswith(said)


def test_a_column_that_is_not_there_cannot_be_told_of() -> None:
    with pytest.raises(SpecError, match="'hours' is no column; there is hour"):
        muster.signature(inputs={"hour": [1]}, outputs=[1.0], ranges={"hours": (0, 1)})
