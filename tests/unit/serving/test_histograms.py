"""Requests that are counted by the bins of training rows, and files of bins that cannot be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np  # noqa: TID253 - what the server has
import pytest

import muster
from muster.core.histograms import of_numbers
from muster_serving.errors import ModelError
from muster_serving.histograms import Histograms
from muster_serving.signature import ModelSignature

SIGNATURE = ModelSignature.parse(
    {
        "format": 1,
        "inputs": [
            {
                "name": "zone",
                "datatype": "BYTES",
                "categories": ["OTHER", "airport", "moon"],
                "fallback": "OTHER",
            },
            {"name": "hour", "datatype": "INT64"},
            {"name": "day", "datatype": "FP32"},
            {"name": "lone \ud800", "datatype": "INT64"},
            {"name": "place", "datatype": "FP32", "shape": [-1, 3]},
        ],
        "outputs": [{"name": "y", "datatype": "FP32"}],
    }
)
ZONE = {"values": ["airport", "OTHER"], "counts": [7, 2, 1]}
HOUR = {"edges": [6.5, 12.5], "counts": [3, 4, 3]}


def loaded(folder: Path, inputs: Any, **about: Any) -> Histograms:
    (folder / "histograms.json").write_text(json.dumps({"format": 1, "inputs": inputs, **about}))
    return Histograms.load(folder, SIGNATURE)


def test_each_request_counts_one_row_in_the_bins_of_its_values(tmp_path: Path) -> None:
    found = loaded(tmp_path, {"zone": ZONE, "hour": HOUR})
    for zone, hour in (("airport", 6), ("moon", 7), ("sun", 12.0), ("OTHER", 13)):  # the sun is a fallback's
        found.count(found.places({"zone": [zone], "hour": [hour], "place": [0, 0, 0]}, 1))
    zones, hours = found.inputs["zone"], found.inputs["hour"]
    assert (zones.labels, zones.asked) == (("airport", "OTHER", "(others)"), [1, 2, 1])
    assert (hours.labels, hours.asked) == (("up to 6.5", "6.5 to 12.5", "above 12.5"), [1, 2, 1])
    rows = {"zone": ["airport"] * 50 + ["OTHER"] * 50, "hour": np.arange(100)}
    for _ in range(100):
        found.count(found.places(rows, 100))
    assert sum(zones.asked) == sum(hours.asked) == 104
    assert min(zones.asked[:2]) > 10  # a row by chance


def test_what_a_job_writes_is_read(tmp_path: Path) -> None:
    rows = {
        "zone": ["airport", "OTHER"] * 30,
        "hour": np.arange(60) % 24,
        "place": np.zeros((60, 3), np.float32),
    }
    muster.signature(inputs=rows, outputs=[0.5] * 60).save(tmp_path)
    found = Histograms.load(tmp_path, ModelSignature.load(tmp_path / "signature.json"))
    for row in range(60):
        found.count(found.places({name: column[row : row + 1] for name, column in rows.items()}, 1))
    assert {name: tuple(bins.asked) for name, bins in found.inputs.items()} == {
        name: bins.trained for name, bins in found.inputs.items()
    }


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ({}, "histograms.json: inputs: expected one or more by name"),
        ({"when": HOUR}, "histograms.json: 'when' is no input of the signature"),
        ({"place": HOUR}, "histograms.json: 'place': the input has several values a row"),
        ({"zone": HOUR}, "histograms.json: 'zone': values is None, need a list of texts"),
        (
            {"hour": HOUR | {"edges": [2, 1]}},
            "histograms.json: 'hour': edges is .* need a list of numbers that rise",
        ),
        (
            {"hour": HOUR | {"counts": [1, 2]}},
            "histograms.json: 'hour': counts is .* need 3 whole numbers below .*, not all of them 0",
        ),
        ({"hour": HOUR | {"counts": [0, 0, 0]}}, "not all of them 0"),
        ({"hour": HOUR | {"edges": [2, 10**400]}}, "'hour': edges is .* need a list of numbers that rise"),
        ({"hour": HOUR | {"edges": [2.5, float("inf")]}}, "need a list of numbers that rise"),
        ({"hour": HOUR | {"counts": [1, 2, 2**53]}}, r"whole numbers below 2\*\*53"),
        ({"hour": {"edges": [*range(64)], "counts": [1] * 65}}, "'hour': 65 bins, need at most 64"),
        ({"zone": {"values": ["a", "a"], "counts": [1, 1, 1]}}, "'zone': values is .* all different"),
        ({"zone": {"values": ["\ud800"], "counts": [1, 1]}}, "'zone': values is .* that UTF-8 can hold"),
        ({"zone": {"values": ["a" * 257], "counts": [1, 1]}}, "'zone': values is .* at most 256 characters"),
        ({"lone \ud800": HOUR}, "the input's name holds what UTF-8 cannot"),
        (dict.fromkeys(map(str, range(201)), HOUR), "histograms.json: inputs: 201, need at most 200"),
        ({"hour": HOUR | {"more": "x" * (1 << 20)}}, "histograms.json is larger than 1048576 bytes"),
        ({"hour": 3}, "histograms.json: 'hour': expected an object, found 3"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused(tmp_path: Path, inputs: Any, says: str) -> None:
    with pytest.raises(ModelError, match=says):
        loaded(tmp_path, inputs)


def test_a_file_that_is_missing_or_of_another_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ModelError, match=r"histograms\.json is missing.* muster\.signature\(…\)\.save\(folder\) writes it"
    ):
        Histograms.load(tmp_path, SIGNATURE)
    with pytest.raises(ModelError, match="format is 2, this server reads 1"):
        loaded(tmp_path, {"hour": HOUR}, format=2)


def test_a_number_of_json_is_placed_as_the_same_number_of_an_array(tmp_path: Path) -> None:
    days = np.array(
        [20_240_114, 20_240_116, 20_240_118], np.float32
    )  # FP32 holds every other whole number here
    found = loaded(tmp_path, {"day": of_numbers(days), "hour": {"edges": [2.0**53], "counts": [1, 1]}})

    def places(day: Any, hour: Any) -> tuple[int, ...]:
        return found.places({"day": day, "hour": hour}, 1)

    for place, day in enumerate(days):
        for given in ([int(day)], [float(day)], np.array([day])):
            assert places(given, [2**53]) == (place, 0)
    assert places([20_240_115], [2**53 + 1]) == places(
        np.array([20_240_115], np.float32), np.array([2**53 + 1])
    )


def test_a_value_that_is_called_as_the_others_are_is_told_from_them(tmp_path: Path) -> None:
    zones = loaded(tmp_path, {"zone": {"values": ["(others)"], "counts": [1, 2]}}).inputs["zone"]
    assert zones.labels == ("(others)", "((others))")
