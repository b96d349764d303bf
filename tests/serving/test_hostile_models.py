"""A model file of another author runs no code of its own, whatever its format, unless the Dag trusts it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.serving import onnx_graph
from tests.serving.conftest import Front
from tests.serving.kinds import HUGGING_FACE, classify, python_of
from tests.serving.try_hostile import MARK

from muster.core.shipped import shipped

pytestmark = [pytest.mark.slow, pytest.mark.data]

TRY = Path(__file__).with_name("try_hostile.py")
ANSWERS = {"xgboost-names", "lightgbm-names"}  # their text is only a text
NOT_TRUSTED = "can run any code when it is loaded or asked"


def run(python: Path, folder: Path, *words: str | Path) -> str:
    done = subprocess.run(
        [python, "-W", "ignore", TRY, *words],
        env={**os.environ, "PYTHONPATH": str(shipped("serving"))},
        cwd=folder,  # the shell would write here
        capture_output=True,
        check=True,
        text=True,
    )
    return done.stdout


def loaded(python: Path, folder: Path) -> dict[str, str]:
    """Return what was said of each version in a folder, once it is known that none ran code."""
    versions = sorted(folder.iterdir())
    said = json.loads(run(python, folder, *versions).splitlines()[-1])
    assert {version: (found, ran) for version, (found, ran) in said.items() if ran} == {}
    assert list(folder.rglob(MARK)) == []
    return {Path(version).name: found for version, (found, _) in said.items()}


@pytest.mark.parametrize("image", ["tables", "train"])
def test_no_hostile_file_runs_its_code(python: Callable[[str], Path], tmp_path: Path, image: str) -> None:
    run(python(image), tmp_path, "--write", image, tmp_path)
    said = loaded(python(image), tmp_path)
    assert len(said) == {"tables": 18, "train": 2}[image]
    assert {name for name, words in said.items() if words == "answered"} == (ANSWERS & said.keys())
    if image == "train":
        assert all(NOT_TRUSTED in words for words in said.values()), said
    refused = {
        name: words for name, words in said.items() if name in ("pickle-model.pkl", "pickle-model.joblib")
    }
    assert all("is a pickle" in words for words in refused.values()), refused


def test_a_hostile_program_of_torch_does_run_code_once_it_is_trusted(
    front: Front, python: Callable[[str], Path], tmp_path: Path
) -> None:
    """Why it must be trusted: the server itself loads what the test before had refused."""
    run(python("train"), tmp_path, "--write", "train", tmp_path)
    setup = {"python": str(python("train")), "memory_gib": 8.0}
    version = tmp_path / "torch-guards"
    assert NOT_TRUSTED in front.load("guarded", version, **setup)
    assert front.load("guarded", version, trusted=["torch.export"], **setup) == ""
    assert front.ask("guarded", 1.0) == (200, {"y": [2.0]})
    assert (tmp_path / "ran").exists()
    front.unload("guarded")


def test_a_graph_reads_no_file_beside_it_and_calls_no_python(
    python: Callable[[str], Path], tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"\0\0\x80?")
    versions = tmp_path / "versions"
    for place in (str(secret), "../../secret"):
        entry = b"\x0a\x08location\x12" + bytes([len(place)]) + place.encode()
        outside = onnx_graph.tensor("slope", onnx_graph.FLOAT, [1], b"")
        outside += b"\x6a" + bytes([len(entry)]) + entry + b"\x70\x01"  # external_data, data_location
        line(versions / f"external-{len(place)}", onnx_graph.node("Mul", ["x", "slope"], "y"), outside)
    line(versions / "python", onnx_graph.node("PyOp", ["x"], "y"))
    said = loaded(python("serve"), versions)
    assert len(said) == 3
    assert "answered" not in said.values(), said


def line(folder: Path, node: bytes, *constants: bytes) -> None:
    graph = onnx_graph.model([node], constants, [("x", onnx_graph.FLOAT, [])], [("y", onnx_graph.FLOAT, [])])
    column = {"name": "x", "datatype": "FP32"}
    onnx_graph.write(folder, graph, {"format": 1, "inputs": [column], "outputs": [{**column, "name": "y"}]})


@pytest.mark.nightly
def test_no_hostile_pipeline_runs_its_code(tmp_path: Path) -> None:
    python = python_of(HUGGING_FACE)
    classify(tmp_path / "good", ["early", "late"])
    run(python, tmp_path, "--write", "hugging-face", tmp_path)
    said = loaded(python, tmp_path)
    assert len(said) == 3
    assert "answered" not in said.values(), said
