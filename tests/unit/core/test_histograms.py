"""The histogram of a column: where its bins begin and end, and what is in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np  # noqa: TID253 - what a job has
import pytest

import muster
from muster.core.errors import SpecError
from muster.core.histograms import of_numbers, of_texts


@pytest.mark.parametrize(
    ("values", "edges", "counts"),
    [
        ([5], [], [1]),
        ([1, 1, 2, 4], [1.5, 3.0], [2, 1, 1]),
        ([False] * 3 + [True], [0.5], [3, 1]),
        (list(range(20)), [n + 0.5 for n in range(19)], [1] * 20),
        (list(range(100)), [n * 10 - 0.5 for n in range(1, 10)], [10] * 10),
        # most are 0, and the bins above are deciles of all
        ([0] * 60 + list(range(1, 41)), [0.5, 10.5, 20.5, 30.5], [60, 10, 10, 10, 10]),
        # a twentieth lies below what half of them are
        (
            [*range(5), *[9] * 50, *range(10, 55)],
            [6.0, 9.5, 14.5, 24.5, 34.5, 44.5],
            [5, 50, 5, 10, 10, 10, 10],
        ),
        ([0.1, float(np.float32(0.7)), 0.9], [0.4, 0.8], [1, 1, 1]),
    ],
)
def test_numbers_lie_between_edges_that_no_value_has(
    values: list[Any], edges: list[float], counts: list[int]
) -> None:
    assert of_numbers(values) == {"edges": edges, "counts": counts}
    assert of_numbers(np.array(values)) == {"edges": edges, "counts": counts}


def test_neighbours_have_an_edge_between_them() -> None:
    low = 1.0
    high = np.nextafter(low, 2)
    assert of_numbers([low, high]) == {"edges": [low], "counts": [1, 1]}


@pytest.mark.parametrize("kind", [np.float32, np.float16, np.int64])
def test_a_column_of_any_type_has_the_counts_of_python_s_own_numbers(kind: Any) -> None:
    first = {np.float32: 20_240_101, np.float16: 2_049, np.int64: 2**53}[
        kind
    ]  # from here on not all whole numbers are held
    values = np.sort(np.array([first + n for n in range(12)], dtype=kind))
    assert of_numbers(values) == of_numbers(values.tolist())


def test_whole_numbers_that_no_float_tells_apart_share_a_bin() -> None:
    assert of_numbers([2**53, 2**53 + 1, 2**53 + 2]) == {"edges": [2.0**53], "counts": [1, 2]}


def test_long_texts_are_counted_with_the_others() -> None:
    assert of_texts(["a" * 257] * 3 + ["b"]) == {"values": ["b"], "counts": [1, 3]}


def test_rare_texts_are_counted_together() -> None:
    found = of_texts([f"airport {n:02}" for n in range(40) for _ in range(41 - n)])
    assert found["values"] == [f"airport {n:02}" for n in range(30)]
    assert found["counts"] == [*range(41, 11, -1), sum(range(2, 12))]


ROWS: dict[str, Any] = {
    "zone": ["centre", "airport"] * 4,
    "note": [f"note {n}" for n in range(8)],
    "hour": np.array([7, 3, 3, 3, 3, 3, 3, 3]),
    "trip": np.zeros((8, 2)),
    "yes": [True, False] * 4,
}


def test_a_signature_comes_with_the_histograms_of_plain_inputs(tmp_path: Path) -> None:
    muster.signature(inputs=ROWS, outputs=[0.5] * 8).save(tmp_path)
    assert json.loads((tmp_path / "histograms.json").read_text()) == {
        "format": 1,
        "inputs": {
            "zone": {"values": ["airport", "centre"], "counts": [4, 4, 0]},
            "hour": {"edges": [5.0], "counts": [7, 1]},
            "yes": {"edges": [0.5], "counts": [4, 4]},
        },
    }
    assert list(ROWS["hour"][:2]) == [7, 3]  # they are not put in order where they are


def test_histograms_are_of_the_inputs_that_are_named(tmp_path: Path) -> None:
    made = muster.signature(inputs=ROWS, outputs=[0.5] * 8, histograms=["zone"])
    assert list(made.histograms) == ["zone"]
    muster.signature(inputs=ROWS, outputs=[0.5] * 8, histograms=False).save(tmp_path)
    assert not (tmp_path / "histograms.json").exists()
    for name in ("note", "trip", "place"):
        with pytest.raises(
            SpecError, match=f"histograms: '{name}' is free text, has several values a row or is no input"
        ):
            muster.signature(inputs=ROWS, outputs=[0.5] * 8, histograms=[name])


def test_more_inputs_than_servers_count_are_left_out_or_refused() -> None:
    many: dict[str, Any] = {f"x{n}": [1, 2] for n in range(201)}
    with pytest.warns(
        UserWarning, match="201 inputs, and the servers count at most 200: those after 'x199' are left out"
    ):
        made = muster.signature(inputs=many, outputs=[0.5] * 2)
    assert list(made.histograms) == list(many)[:200]
    with pytest.raises(SpecError, match="201 inputs, and the servers count at most 200: name fewer"):
        muster.signature(inputs=many, outputs=[0.5] * 2, histograms=list(many))


def test_more_bytes_than_servers_read_are_not_written(tmp_path: Path) -> None:
    texts = [f"{n:0256}" for n in range(30)] * 2
    made = muster.signature(inputs={f"x{n}": texts for n in range(150)}, outputs=[0.5] * 60)
    with pytest.raises(
        SpecError, match=r"histograms\.json would have \d+ bytes, and the servers read at most 1048576"
    ):
        made.save(tmp_path)
    assert not list(tmp_path.iterdir())
