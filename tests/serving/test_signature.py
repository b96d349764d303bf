"""Bounds that a data type cannot hold, and what the pages say of a model and of the server."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.serving import onnx_graph

from muster.core.shipped import shipped

pytestmark = pytest.mark.slow

FP64, INT64 = 11, 7

Try = Callable[..., dict[str, Any]]


@pytest.fixture
def tried(python: Callable[[str], Path]) -> Try:
    """Loads a folder in the image, and says what its model answers and what the pages say of it."""

    def ask(folder: Path, *bodies: str) -> dict[str, Any]:
        script = Path(__file__).with_name("try_asking.py")
        environment = {**os.environ, "PYTHONPATH": str(shipped("serving"))}
        command = [str(python("serve")), str(script), str(folder), *bodies]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-500:]
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    return ask


def same(folder: Path, datatype: str, kind: int, *, taken: Any, answered: Any) -> Path:
    """Write a model that answers what it is asked."""
    graph = onnx_graph.model(
        [onnx_graph.node("Identity", ["x"], "y")], [], [("x", kind, [])], [("y", kind, [])]
    )
    column = {"datatype": datatype, "shape": [-1]}
    inputs, outputs = [{"name": "x", **column, **taken}], [{"name": "y", **column, **answered}]
    return onnx_graph.write(folder, graph, {"format": 1, "inputs": inputs, "outputs": outputs})


def test_a_bound_that_is_no_fp32_is_allowed_itself(tried: Try, tmp_path: Path) -> None:
    bounds = {"min": 0.01, "max": 0.1}  # as FP32 the one is less than 0.01, the other more than 0.1
    folder = same(tmp_path, "FP32", onnx_graph.FLOAT, taken={}, answered=bounds)
    rows = [[0.1], [0.01], [0.1, 0.01], [0.11], [0.009, 0.05]]
    answers = tried(folder, *(json.dumps({"inputs": {"x": each}}) for each in rows))["answers"]
    good = [json.loads(each)["outputs"]["y"] for each in answers[:3]]
    assert good == [pytest.approx(each) for each in rows[:3]]
    assert all("output 'y': the model answered" in each for each in answers[3:])


def test_bounds_of_more_than_64_bits_can_be_shown(tried: Try, tmp_path: Path) -> None:
    bounds = {"min": -(10**30), "max": 10**30}
    found = tried(same(tmp_path, "FP64", FP64, taken=bounds, answered={}))
    request = found["document"]["paths"]["/v1/models/one:predict"]["post"]["requestBody"]["content"]
    column = request["application/json"]["schema"]["anyOf"][0]["properties"]["instances"]["items"]
    assert column["properties"]["x"] == {"type": "number", "minimum": -1e30, "maximum": 1e30}


def test_the_example_of_a_model_is_one_that_it_takes(tried: Try, tmp_path: Path) -> None:
    found = tried(same(tmp_path, "INT64", INT64, taken={"min": 0.5, "max": 3}, answered={}))
    assert found["example"] == '{"predictions":[1]}'


def test_readiness_is_described_as_it_is_answered(tried: Try, tmp_path: Path) -> None:
    document = tried(onnx_graph.write_line(tmp_path))["document"]
    unready = document["paths"]["/v2/health/ready"]["get"]["responses"]["503"]
    assert unready["content"]["application/json"]["schema"]["required"] == ["ready"]
