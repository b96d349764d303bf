"""What a version's folder must hold, found out when it is loaded and not by a user's request."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.docs.page import DOCS, File, steps
from tests.serving import onnx_graph

from muster.core.shipped import shipped

pytestmark = pytest.mark.slow

X = {"name": "x", "datatype": "FP32", "shape": [-1]}
Y = {"name": "y", "datatype": "FP32", "shape": [-1]}

BAD_SIGNATURES: list[tuple[Any, str]] = [
    ("{", "signature.json cannot be read"),
    ([], "expected an object"),
    ({"format": 3, "inputs": [X], "outputs": [Y]}, "format is 3, this server reads 1 and 2"),
    ({"inputs": [X], "outputs": [Y]}, "format is None"),
    ({"format": 1, "inputs": [X], "outputs": [Y], "author": "me"}, "unknown key 'author'"),
    ({"format": 1, "inputs": [], "outputs": [Y]}, "inputs: expected a list of one or more tensors"),
    ({"format": 1, "inputs": [X, X], "outputs": [Y]}, "inputs: 'x' is there twice"),
    ({"format": 1, "inputs": [X], "outputs": [Y], "max_batch": 0}, "max_batch is 0"),
    ({"format": 1, "inputs": [X], "outputs": [Y], "max_batch": True}, "max_batch is True"),
    ({"format": 1, "inputs": [X | {"unit": "m"}], "outputs": [Y]}, "inputs[0]: unknown key 'unit'"),
    ({"format": 1, "inputs": [X | {"name": ""}], "outputs": [Y]}, "inputs[0]: needs a name, found ''"),
    (
        {"format": 1, "inputs": [X | {"datatype": "FLOAT"}], "outputs": [Y]},
        "'x': datatype 'FLOAT'; known are BOOL",
    ),
    ({"format": 1, "inputs": [X | {"shape": [1]}], "outputs": [Y]}, "'x': shape [1]; expected -1"),
    ({"format": 1, "inputs": [X | {"shape": [-1, -1]}], "outputs": [Y]}, "'x': shape [-1, -1]"),
    (
        {"format": 1, "inputs": [X | {"shape": [-1, 3]}], "outputs": [Y]},
        "2 dimensions, the graph ['rows']: write \"shape\": [-1] into",
    ),
    (
        {"format": 1, "inputs": [X | {"min": 2, "max": 1}], "outputs": [Y]},
        "min 2 and max 1 are no range of FP32",
    ),
    ({"format": 1, "inputs": [X | {"min": "0"}], "outputs": [Y]}, "bound '0' is no number"),
    (
        {"format": 1, "inputs": [X | {"categories": [1.0]}], "outputs": [Y]},
        "only BYTES and integers have categories",
    ),
    ({"format": 1, "inputs": [X | {"nullable": True}], "outputs": [Y]}, "inputs[0]: unknown key 'nullable'"),
    (
        {"format": 2, "inputs": [X | {"nullable": 1}], "outputs": [Y]},
        "'x': nullable is 1, need true or false",
    ),
    ({"format": 2, "inputs": [X], "outputs": [Y | {"nullable": True}]}, "outputs[0]: unknown key 'nullable'"),
    (
        {"format": 2, "inputs": [X | {"frame": "Int64"}], "outputs": [Y]},
        "'x': frame is 'Int64', need an object",
    ),
    ({"format": 1, "inputs": [X | {"fallback": 1}], "outputs": [Y]}, "a fallback needs categories"),
    (
        {"format": 1, "inputs": [X | {"datatype": "FP64"}], "outputs": [Y]},
        "says FP64, which is tensor(double), the graph tensor(float)",
    ),
    (
        {"format": 1, "inputs": [X | {"datatype": "BYTES", "categories": ["a"]}], "outputs": [Y]},
        "says BYTES with categories, which is tensor(int64), the graph tensor(float)",
    ),
    (
        {"format": 1, "inputs": [X | {"name": "z"}], "outputs": [Y]},
        "signature's inputs are z, the graph's are x",
    ),
    (
        {"format": 1, "inputs": [X], "outputs": [Y | {"name": "z"}]},
        "signature's outputs are z, the graph's are y",
    ),
    (
        {"format": 1, "inputs": [X | {"datatype": "BYTES", "categories": ["a", "a"]}], "outputs": [Y]},
        "a category is there twice",
    ),
    (
        {
            "format": 1,
            "inputs": [X | {"datatype": "BYTES", "categories": ["a"], "fallback": "b"}],
            "outputs": [Y],
        },
        "fallback 'b' is none of the categories",
    ),
    (
        {"format": 1, "inputs": [X | {"datatype": "INT8", "categories": [1, 300]}], "outputs": [Y]},
        "'x': category 300 is no INT8",
    ),
]


@pytest.fixture
def said(python: Callable[[str], Path]) -> Callable[..., list[str]]:
    """Loads folders in the image and returns what the predictor says of each."""

    def load(*folders: Path) -> list[str]:
        script = Path(__file__).with_name("try_loading.py")
        environment = {**os.environ, "PYTHONPATH": str(shipped("serving"))}
        command = [python("serve"), script, *folders]
        done = subprocess.run(
            list(map(str, command)), env=environment, capture_output=True, text=True, check=True
        )
        answers: list[str] = json.loads(done.stdout)
        return answers

    return load


def test_a_signature_that_cannot_be_is_refused(said: Any, tmp_path: Path) -> None:
    folders = []
    for i, (signature, _) in enumerate(BAD_SIGNATURES):
        folders.append(onnx_graph.write_line(tmp_path / str(i)))
        text = signature if isinstance(signature, str) else json.dumps(signature)
        (folders[-1] / "signature.json").write_text(text)
    for answer, (signature, words) in zip(said(*folders), BAD_SIGNATURES, strict=True):
        assert words in answer, signature


def test_a_folder_must_hold_a_model_that_can_be_read(said: Any, tmp_path: Path) -> None:
    without, torn, good = (onnx_graph.write_line(tmp_path / name) for name in ("without", "torn", "good"))
    (without / "model.onnx").unlink()
    (torn / "model.onnx").write_bytes(b"\x08\x08torn")
    answers = said(without, torn, good, onnx_graph.write_mixed(tmp_path / "mixed"))
    assert answers[0] == f"model.onnx is missing from {without}"
    assert answers[1].startswith("model.onnx cannot be loaded: ")
    assert answers[2:] == ["takes x", "takes code, day, place"]


def test_a_graph_of_text_columns_is_told_how_its_signature_reads(said: Any, tmp_path: Path) -> None:
    texts = [("x", onnx_graph.STRING, [1])], [("y", onnx_graph.STRING, [1])]
    graph = onnx_graph.model([onnx_graph.node("Identity", ["x"], "y")], [], *texts)
    column = {"name": "x", "datatype": "BYTES"}
    answer = {"name": "y", "datatype": "BYTES", "shape": [-1, 1]}
    tries = [column | {"categories": ["a"]}, column, column | {"shape": [-1, 1]}]
    folders = [
        onnx_graph.write(tmp_path / str(i), graph, {"format": 1, "inputs": [each], "outputs": [answer]})
        for i, each in enumerate(tries)
    ]
    coded, flat, right = said(*folders)
    assert coded.endswith("leave its categories out, and the graph gets the text")
    assert flat.endswith('write "shape": [-1, 1] into the signature')
    assert right == "takes x"


def test_the_signature_of_the_docs_is_one(said: Any, tmp_path: Path) -> None:
    for file in (step for step in steps(DOCS / "howto" / "signature.md") if isinstance(step, File)):
        (tmp_path / file.path).write_text(file.text)
    assert said(tmp_path) == [f"model.onnx is missing from {tmp_path}"]
