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
        "format": 2,
        "max_batch": 100,
        "inputs": [
            {"name": "zone", "datatype": "BYTES", "categories": ["airport", "centre"]},
            {"name": "note", "datatype": "BYTES"},
            {"name": "hour", "datatype": "INT8", "min": 0, "max": 7},
            {"name": "area", "datatype": "FP32", "min": -1.0, "max": 3.0},
            {"name": "trip", "datatype": "FP64", "shape": [-1, 2], "min": 0, "max": 1.0},
            {"name": "yes", "datatype": "BOOL"},
            {"name": "code", "datatype": "FP64", "min": 1, "max": 2.5},
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


def test_a_fallback_is_a_category_of_the_rows_and_stands_for_null() -> None:
    """A deployment asked for a fallback that nothing but an editor could write."""
    rows = {"ward": ["A", "unknown", "A", "unknown"], "sex": [0, 1, 0, 1]}
    made = muster.signature(
        inputs=rows, outputs=[1.0] * 4, categories={"sex": [0, 1]}, fallback={"ward": "unknown", "sex": 1}
    )
    ward, sex = made.document["inputs"]
    assert ward == {
        "name": "ward",
        "datatype": "BYTES",
        "categories": ["A", "unknown"],
        "nullable": True,
        "fallback": "unknown",
    }
    assert (sex["categories"], sex["nullable"], sex["fallback"]) == ([0, 1], True, 1)


def test_texts_that_are_all_missing_have_no_categories() -> None:
    made = muster.signature(inputs={"x": np.ma.array(["a", "b"], mask=True)}, outputs=[0.0, 1.0])
    assert made.document["inputs"] == [{"name": "x", "datatype": "BYTES", "nullable": True}]


def test_what_is_told_counts_instead_of_what_is_seen() -> None:
    made = muster.signature(
        inputs={"zone": ["centre"] * 4, "hour": [3, 4, 5, 6]},
        outputs=np.array([1.5] * 4),
        categories={"zone": None, "hour": list(range(24))},
        ranges={"output": (0, None)},
    )
    assert made.document["inputs"] == [
        {"name": "zone", "datatype": "BYTES"},
        {"name": "hour", "datatype": "INT64", "categories": list(range(24)), "closed": True},
    ]
    assert made.document["outputs"] == [{"name": "output", "datatype": "FP64", "min": 0}]


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ([None, None], "column 'x' has nothing but missing values: leave it out"),
        (["a", "b\ud800"], "column 'x' has text that UTF-8 cannot hold, '\\ud800'"),
        ([[1, 2], [3, 4]], "column 'x' has the type list: a signature knows"),
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


@pytest.mark.parametrize(
    ("column", "entry", "example"),
    [
        ([1.0, float("nan")], {"datatype": "FP64", "min": 1.0, "max": 1.0}, [1.0, None]),
        (np.array([np.nan, 2], np.float32), {"datatype": "FP32", "min": 2.0, "max": 2.0}, [None, 2.0]),
        (["a", None], {"datatype": "BYTES"}, ["a", None]),
        ([None, True], {"datatype": "BOOL"}, [None, True]),
        (np.array([True, None], object), {"datatype": "BOOL"}, [True, None]),
        ([2**62 + 1, None], {"datatype": "INT64", "min": 2**62 + 1, "max": 2**62 + 1}, [2**62 + 1, None]),
        (
            np.ma.masked_array(np.array([5, 7], np.int8), [False, True]),
            {"datatype": "INT8", "min": 5, "max": 5},
            [5, None],
        ),
        (
            np.array([[1, np.nan], [3, 4]]),
            {"datatype": "FP64", "shape": [-1, 2], "min": 1.0, "max": 4.0},
            [[1.0, None], [3.0, 4.0]],
        ),
    ],
)
def test_an_input_with_a_missing_value_is_nullable(
    column: Any, entry: dict[str, Any], example: list[Any], tmp_path: Path
) -> None:
    made = muster.signature(inputs={"x": column}, outputs=[1.0])
    assert made.document["inputs"] == [{"name": "x", "nullable": True, **entry}]
    made.save(tmp_path)
    assert json.loads((tmp_path / "example.json").read_text()) == {"inputs": {"x": example}}
    if "shape" not in entry and entry["datatype"] != "BYTES":
        assert made.histograms["x"]["nulls"] == 1


def test_a_column_of_nothing_but_nan_has_a_type_and_no_range() -> None:
    made = muster.signature(inputs={"x": np.array([np.nan, np.nan])}, outputs=[1.0])
    assert made.document["inputs"] == [{"name": "x", "datatype": "FP64", "nullable": True}]
    assert made.histograms["x"] == {"edges": [], "counts": [0], "nulls": 2}


def test_an_answer_has_no_missing_value() -> None:
    with pytest.raises(SpecError, match="output 'y' has 1 missing values or NaN, which no answer can hold"):
        muster.signature(inputs={"x": [1]}, outputs={"y": [1.0, float("nan")]})


def test_ranges_of_whole_numbers_are_exact() -> None:
    ids = [2**53 + 1, 2**53 + 3, 2**53 + 5]
    wide = np.array([2**64 - 1, 2**64 - 3], np.uint64)
    made = muster.signature(inputs={"id": ids, "wide": wide}, outputs=[1.0])
    assert [(e["min"], e["max"]) for e in made.document["inputs"]] == [
        (ids[0], ids[2]),
        (2**64 - 3, 2**64 - 1),
    ]
    made = muster.signature(inputs={"id": ids, "wide": wide}, outputs=[1.0], closed=True)
    assert [(e["min"], e["max"]) for e in made.document["inputs"]] == [
        (2**53 - 1, 2**53 + 7),
        (2**64 - 4, 2**64 - 1),
    ]


def test_what_is_closed_is_named() -> None:
    rows = {"zone": ["a", "b"] * 2, "hour": [1, 2, 3, 4], "year": [2026] * 4, "note": list("abcd")}
    made = muster.signature(inputs=rows, outputs=[1.0], closed=["zone", "hour"])
    assert [entry.get("closed", False) for entry in made.document["inputs"]] == [True, True, False, False]
    assert made.document["inputs"][1] == {
        "name": "hour",
        "datatype": "INT64",
        "min": 0,
        "max": 6,
        "closed": True,
    }
    for closed, said in (
        (True, "closed: 'year' has the value 2026 alone, so all others would be refused"),
        (["note"], "closed: 'note' has no range and no categories"),
        (["moon"], "'moon' is no column; there is zone, hour, year, note"),
    ):
        with pytest.raises(SpecError, match=said):
            muster.signature(inputs=rows, outputs=[1.0], closed=closed)


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"categories": {"hour": ["1", "2"]}}, "categories: 'hour' has the type INT64, found '1'"),
        ({"categories": {"area": ["1"]}}, "categories: 'area' has the type FP64, found '1'"),
        ({"categories": {"zone": []}}, "categories: 'zone' has the type BYTES, found none"),
        ({"ranges": {"zone": (0, 1)}}, "ranges: 'zone' has the type BYTES: only numbers have a range"),
        ({"ranges": {"hour": (2, 1)}}, "ranges: 'hour' has 2 to 1: the least comes first"),
        (
            {"fallback": {"area": 1.5}},
            "fallback: 'area' has no category 1.5, there is none: fill its missing",
        ),
        (
            {"fallback": {"zone": "c"}, "categories": {"zone": ["a", "b"]}},
            "fallback: 'zone' has no category 'c', there is a, b: fill its missing",
        ),
    ],
)
def test_what_is_told_fits_the_column(told: Any, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        muster.signature(inputs={"zone": ["a", "b"], "hour": [1, 2], "area": [1.5, 2]}, outputs=[1.0], **told)


def test_two_columns_of_one_name_are_refused() -> None:
    class Frame:
        columns = ("x", "y", "x")

    with pytest.raises(SpecError, match="inputs: 2 columns have the name 'x': rename them, or leave one out"):
        muster.signature(inputs=Frame(), outputs=[1.0])


def test_a_column_that_is_not_there_cannot_be_told_of() -> None:
    with pytest.raises(SpecError, match="'hours' is no column; there is hour"):
        muster.signature(inputs={"hour": [1]}, outputs=[1.0], ranges={"hours": (0, 1)})
    with pytest.raises(SpecError, match="'hours' is no column; there is hour"):
        muster.signature(inputs={"hour": [1]}, outputs=[1.0], fallback={"hours": 1})
