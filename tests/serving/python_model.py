"""A version whose model is Python: ``y = slope * x``, and for some values of x the worst that a predictor can do."""

from __future__ import annotations

import json
from pathlib import Path

PREDICT = """\
import os
import subprocess
import sys
import time

import numpy as np
from beside import SLOPE


def load(folder):
    print("loading")
    return SLOPE


def predict(slope, inputs):
    x = inputs["x"]
    for value, act in BAD.items():
        if (x == value).any():
            return act(x)
    return {"y": x * slope, "together": np.full(len(x), len(x), np.float32), "pid": np.full(len(x), os.getpid())}


def raises(x):
    raise ValueError("unlucky")


def flood(x):
    for _ in range(40_000):
        print("noise " * 10)
    return {"y": x, "together": x, "pid": np.full(len(x), os.getpid())}


def slow(x):
    time.sleep(1)
    return {"y": x, "together": x, "pid": np.full(len(x), os.getpid())}


def fork(x):
    child = os.fork()
    if not child:
        time.sleep(600)
    return {"y": x, "together": x, "pid": np.full(len(x), child)}


def hide(x):
    child = subprocess.Popen(["setsid", "sleep", "601"])
    return {"y": x, "together": x, "pid": np.full(len(x), child.pid)}


BAD = {
    101: raises,
    102: lambda x: {"y": x * np.nan, "together": x, "pid": np.zeros(len(x), int)},
    103: lambda x: {"y": x[:0], "together": x, "pid": np.zeros(len(x), int)},
    104: lambda x: {"y": x.astype(str), "together": x, "pid": np.zeros(len(x), int)},
    105: lambda x: x,
    106: lambda x: {"y": x},
    107: lambda x: np.ones(1 << 40),
    108: flood,
    109: fork,
    110: slow,
    111: lambda x: hide(x),
    201: lambda x: os.abort(),
    202: lambda x: sys.exit("no more"),
    203: lambda x: time.sleep(600),
}
"""


def write_line(folder: Path, *, slope: float = 2.0, predict: str = PREDICT) -> Path:
    """Write a version with ``predict.py``, a module beside it, and its signature."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "predict.py").write_text(predict)
    (folder / "beside.py").write_text(f"SLOPE = {slope}\n")
    outputs = [
        {"name": "y", "datatype": "FP32"},
        {"name": "together", "datatype": "FP32"},
        {"name": "pid", "datatype": "INT64"},
    ]
    write_signature(folder, [{"name": "x", "datatype": "FP32"}], outputs)
    return folder


def write_signature(folder: Path, inputs: list[dict[str, object]], outputs: list[dict[str, object]]) -> None:
    """Write the signature of a version."""
    document = {"format": 1, "inputs": inputs, "outputs": outputs}
    (folder / "signature.json").write_text(json.dumps(document))
