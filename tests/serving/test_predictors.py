"""Models of scikit-learn, XGBoost, LightGBM and torch, written by their libraries and answered as these answer."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.serving.conftest import Front
from tests.serving.kinds import HUGGING_FACE, classify, python_of
from tests.serving.python_model import write_signature

from muster.core.deployment import PREDICTED, needs_workers

pytestmark = [pytest.mark.slow, pytest.mark.data]


@pytest.mark.parametrize("name", ["sklearn", "xgboost", "lightgbm", "pickle"])
def test_a_model_answers_as_its_library_does(
    front: Front,
    fitted: Path,
    python: Callable[[str], Path],
    name: str,
) -> None:
    told = json.loads((fitted / "expected.json").read_text())
    setup: dict[str, Any] = {"python": str(python("tables")), "trusted": ["pickle"] * (name == "pickle")}
    assert front.load(name, fitted / name, **setup) == ""
    path = f"/v1/models/line/versions/{name}:predict"
    status, answer = front.server.ask("POST", path, {"inputs": told["asked"]})
    assert (status, list(answer)) == (200, ["outputs"])
    assert answer["outputs"]["probability"] == pytest.approx(told["expected"][name], abs=1e-6)
    status, answer = front.server.ask("POST", path, {"inputs": {**told["asked"], "zone": ["moon"] * 5}})
    assert (status, answer["error"]) == (
        400,
        "input 'zone': found text 'moon', expected one of airport, centre, harbour",
    )
    front.unload(name)


def test_the_types_that_skops_does_not_know_are_named_beside_those_that_are_trusted(
    front: Front,
    fitted: Path,
    python: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    code = (
        "import skops.io, sys, types\n"
        "made = sys.modules['own'] = types.ModuleType('own')\n"
        "several = [type(f'Own{n}' + 40 * 'x', (), {'__module__': 'own'}) for n in range(9)]\n"
        "made.__dict__.update({each.__name__: each for each in several})\n"
        "skops.io.dump([each() for each in several], sys.argv[1])\n"
    )
    subprocess.run([python("tables"), "-c", code, tmp_path / "model.skops"], check=True)
    write_signature(tmp_path, [{"name": "x", "datatype": "FP64"}], [{"name": "y", "datatype": "FP64"}])
    types = sorted(["numpy.dtype", *(f"own.Own{n}{40 * 'x'}" for n in range(9))])
    said = front.load("own", tmp_path, python=str(python("tables")), trusted=["numpy.dtype"])
    assert said == (
        "model.skops holds types that can run code when they are loaded: let the operator trust them, "
        f"trusted={types}, or leave them out of the model"
    )


@pytest.mark.nightly  # test_hostile_models.py has one that answers once it is trusted
def test_a_program_of_torch_export_answers(
    front: Front,
    python: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    code = (
        "import sys, torch\n"
        "class Line(torch.nn.Module):\n"
        "    def forward(self, x, z): return 2 * x + z\n"
        "rows = torch.export.Dim('rows')\n"
        "example = (torch.ones(3), torch.zeros(3, dtype=torch.int64))\n"
        "made = torch.export.export(Line(), example, dynamic_shapes=({0: rows}, {0: rows}))\n"
        "torch.export.save(made, sys.argv[1])\n"
    )
    subprocess.run([python("train"), "-c", code, tmp_path / "model.pt2"], check=True)
    inputs: list[dict[str, object]] = [
        {"name": "x", "datatype": "FP32"},
        {"name": "z", "datatype": "BYTES", "categories": ["no", "yes"]},
    ]
    write_signature(tmp_path, inputs, [{"name": "y", "datatype": "FP32"}])
    setup = {"python": str(python("train")), "memory_gib": 8.0, "trusted": ["torch.export"]}
    assert front.load("torch", tmp_path, **setup) == ""
    path = "/v1/models/line/versions/torch:predict"
    answer = front.server.ask("POST", path, {"inputs": {"x": [1.0, 2.0, 3.0], "z": ["no", "yes", "no"]}})
    assert answer == (200, {"outputs": {"y": [2.0, 5.0, 6.0]}})
    front.unload("torch")


@pytest.mark.nightly
def test_a_pipeline_of_hugging_face_answers_as_it_does_where_it_was_made(
    front: Front, tmp_path: Path
) -> None:
    version = tmp_path / "version"
    texts = ["the flight was late", "early", "a word that it does not know", "late " * 40, ""]
    expected = classify(version, texts)
    assert {each["label"] for each in expected} == {"early", "late"}
    python = str(python_of(HUGGING_FACE))
    assert front.load("texts", version, python=python, memory_gib=8.0, most=8) == ""
    status, answer = front.ask("texts", *texts, name="text")
    assert status == 200, answer
    assert answer["label"] == [each["label"] for each in expected]
    assert answer["score"] == pytest.approx([each["score"] for each in expected], abs=1e-5)
    assert front.ask("texts", 1, name="text") == (
        400,
        "input 'text': found 1 at position 0, expected BYTES",
    )
    front.unload("texts")

    tokenizer = version / "pipeline" / "tokenizer_config.json"
    tokenizer.write_text(json.dumps({**json.loads(tokenizer.read_text()), "model_max_length": 10**30}))
    outputs = [{"name": "label", "datatype": "BYTES", "shape": [-1, 2]}]
    outputs.append({"name": "score", "datatype": "FP32", "shape": [-1, 2]})
    write_signature(version, [{"name": "text", "datatype": "BYTES"}], outputs)
    assert front.load("both", version, python=python, memory_gib=8.0) == ""
    status, answer = front.ask("both", *texts, name="text")
    assert status == 200, answer
    assert [labels[0] for labels in answer["label"]] == [each["label"] for each in expected]
    assert [set(labels) for labels in answer["label"]] == [{"early", "late"}] * len(texts)
    assert [sum(scores) for scores in answer["score"]] == pytest.approx([1.0] * len(texts), abs=1e-5)
    front.unload("both")
    write_signature(version, [{"name": "text", "datatype": "BYTES"}], [{**outputs[0], "shape": [-1, 3]}])
    said = front.load("three", version, python=python, memory_gib=8.0)
    assert said.endswith("for the first K of its 2 labels; the signature has label [-1, 3]")


def test_the_files_that_workers_load_are_the_same_for_a_dag_and_for_the_server(
    python: Callable[[str], Path],
) -> None:
    code = "from muster_serving.predictors import KNOWN; print(*KNOWN)"
    from muster.core.shipped import shipped

    known = subprocess.run(
        [python("serve"), "-c", code],
        env={**os.environ, "PYTHONPATH": str(shipped("serving"))},
        capture_output=True,
        check=True,
        text=True,
    ).stdout.split()
    assert tuple(known) == PREDICTED
    assert needs_workers(["signature.json", "pipeline/config.json"])
    assert not needs_workers(["signature.json", "model.onnx", "notes/predict.py"])
