"""Small versions of each kind of model that is served, written by their libraries, with what these answer.

::

    for kind in KINDS:
        version = kind.make(folder / kind.name, 1)
        version.asked  # one row
        version.answer  # what its library says of it
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.serving import onnx_graph
from tests.serving.python_model import write_signature

from muster.core.deployment import SmokeRequest
from muster.core.settings import Settings
from muster.core.shipped import shipped
from muster.images.environment import Environments
from muster.images.folders import image_digest
from muster.images.worker_archive import worker_folder

HUGGING_FACE = Path(__file__).with_name("hugging-face")
NEAR = 1e-5  # two computations of one answer are no farther apart

_DEPARTS = "07:45"
_PREDICT = """\
import json

import numpy as np


def load(folder):
    return json.loads((folder / "weights.json").read_text())


def predict(weights, inputs):
    return {"delay": weights["minute"] * minutes(inputs["departs"])}


def minutes(clocks):
    both = (clock.split(":") for clock in clocks)
    return np.array([60 * int(hour) + int(minute) for hour, minute in both], np.float64)
"""
_ASK_ONNX = """\
import json, sys
import numpy as np, onnxruntime

asked = json.load(sys.stdin)
kinds = {"tensor(float)": np.float32, "tensor(int64)": np.int64}
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
given = {each.name: np.array([asked[each.name]], kinds[each.type]) for each in session.get_inputs()}
names = [each.name for each in session.get_outputs()]
print(json.dumps({name: row[0].item() for name, row in zip(names, session.run(names, given))}))
"""


@dataclass(frozen=True, kw_only=True)
class Made:
    """A version that was made.

    :param folder: what it holds.
    :param asked: one row: the value of each input.
    :param answer: what the model's library answers it: the value of each output.
    """

    folder: Path
    asked: Mapping[str, Any]
    answer: Mapping[str, Any]

    @property
    def request(self) -> dict[str, Any]:
        """The row as a request of the Open Inference Protocol."""
        columns = json.loads((self.folder / "signature.json").read_text())["inputs"]
        told = [(column["name"], column["datatype"]) for column in columns]
        row = [{"name": n, "datatype": kind, "shape": [1], "data": [self.asked[n]]} for n, kind in told]
        return {"inputs": row}

    @property
    def smoke(self) -> SmokeRequest:
        """The row, and that each number of the answer is expected."""
        numbers = {name: value for name, value in self.answer.items() if isinstance(value, float)}
        expect = {name: {"min": value - NEAR, "max": value + NEAR} for name, value in numbers.items()}
        inputs = {name: (value,) for name, value in self.asked.items()}
        return SmokeRequest(name="row", inputs=inputs, expect=expect)


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of model.

    :param image: the folder of the image in which it is made, and runs.
    :param make: writes a version below a folder; those of two seeds answer one row differently.
    """

    name: str
    image: Path
    make: Callable[[Path, int], Made]
    memory_gib: float = 2.0


def python_of(image: Path) -> Path:
    """Return the Python of an image's environment, built if it is not there. :param image: the image's folder."""
    return Environments(Settings.load().cache).ensure(image.name, image, image_digest(image))


def fit(folder: Path, *, seed: int = 7) -> dict[str, Any]:
    """Write a version of each library of the image ``tables``; return rows, and what each answers: ``fit_tables.py``."""
    subprocess.run(
        [python_of(_image("tables")), Path(__file__).with_name("fit_tables.py"), folder, str(seed)],
        env={**os.environ, "PYTHONPATH": str(worker_folder(Settings.load().cache))},
        check=True,
    )
    told: dict[str, Any] = json.loads((folder / "expected.json").read_text())
    return told


def classify(folder: Path, texts: Sequence[str], *, seed: int = 3) -> list[dict[str, Any]]:
    """Write a classifier of texts as a version; return label and score of each text, as Hugging Face answers."""
    folder.mkdir(parents=True, exist_ok=True)
    made = subprocess.run(
        [python_of(HUGGING_FACE), Path(__file__).with_name("make_pipeline.py"), folder, str(seed)],
        input=json.dumps(texts),
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    outputs: list[dict[str, object]] = [
        {"name": "label", "datatype": "BYTES"},
        {"name": "score", "datatype": "FP32", "min": 0, "max": 1},
    ]
    write_signature(folder, [{"name": "text", "datatype": "BYTES"}], outputs)
    answers: list[dict[str, Any]] = json.loads(made.stdout)
    return answers


def _image(name: str) -> Path:
    return shipped("images") / name


def _flights(folder: Path, seed: int) -> Made:
    """The flights model, untrained: its shape, and random weights."""
    onnx_graph.write_delays(folder, seed=seed)
    asked = {"carrier": 3, "origin": 1, "dest": 50, **{f"number_{i}": i / 10 for i in range(9)}}
    asking = [python_of(_image("serve")), "-c", _ASK_ONNX, folder / "model.onnx"]
    said = subprocess.run(
        asking, input=json.dumps(asked), stdout=subprocess.PIPE, check=True, text=True
    ).stdout
    return Made(folder=folder, asked=asked, answer=json.loads(said))


def _table(name: str) -> Callable[[Path, int], Made]:
    def make(folder: Path, seed: int) -> Made:
        told = fit(folder, seed=seed)
        asked = {column: values[0] for column, values in told["asked"].items()}
        return Made(folder=folder / name, asked=asked, answer={"probability": told["expected"][name][0]})

    return make


def _python(folder: Path, seed: int) -> Made:
    """Code of the author's own, with a step before the model: a clock's time becomes a number of minutes."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "predict.py").write_text(_PREDICT)
    (folder / "weights.json").write_text(json.dumps({"minute": seed / 8}))
    columns = ({"name": "departs", "datatype": "BYTES"}, {"name": "delay", "datatype": "FP64"})
    write_signature(folder, [columns[0]], [columns[1]])
    return Made(folder=folder, asked={"departs": _DEPARTS}, answer={"delay": (7 * 60 + 45) * seed / 8})


def _pipeline(folder: Path, seed: int) -> Made:
    texts = ["the flight was late", "early", "was the flight early"]  # of one alone, each label is as likely
    answer, *_ = classify(folder, texts, seed=seed)
    return Made(folder=folder, asked={"text": texts[0]}, answer=answer)


KINDS = (
    Kind(name="ONNX", image=_image("serve"), make=_flights),
    Kind(name="scikit-learn", image=_image("tables"), make=_table("sklearn")),
    Kind(name="XGBoost", image=_image("tables"), make=_table("xgboost")),
    Kind(name="predict.py", image=_image("serve"), make=_python),
    Kind(name="Hugging Face", image=HUGGING_FACE, make=_pipeline, memory_gib=3.0),
)
