"""The bare call of a version's predictor: ``python serving_bare.py FOLDER TIMES`` prints its CPU microseconds, of one row.

``python serving_bare.py fit FOLDER`` writes the versions that are compared. Both run in the image ``tables``, with the
servers' code on PYTHONPATH.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np  # noqa: TID253 - it runs in the image

COLUMNS = 12
PREDICT = """
import numpy as np


def load(folder):
    return np.linspace(-1, 1, 12)


def predict(weights, inputs):
    return {"y": 1 / (1 + np.exp(-inputs["x"] @ weights))}
"""
SLOW = """
import time


def load(folder):
    return None


def predict(model, inputs):
    time.sleep(0.002)  # what a call of the model costs, whatever its rows
    return {"y": inputs["x"][:, 0]}
"""


def fit(root: Path) -> None:
    import skops.io
    import xgboost
    from sklearn.linear_model import LogisticRegression

    random = np.random.default_rng(3)
    x = random.normal(size=(2000, COLUMNS))
    y = (x.sum(axis=1) > 0).astype(int)
    (_version(root / "code") / "predict.py").write_text(PREDICT)
    (_version(root / "slow") / "predict.py").write_text(SLOW)
    model = LogisticRegression().fit(x, y)
    skops.io.dump(model, _version(root / "sklearn") / "model.skops")
    booster = xgboost.train(
        {"objective": "binary:logistic", "nthread": 1, "max_depth": 4}, xgboost.DMatrix(x, y), 50
    )
    booster.save_model(_version(root / "xgboost") / "model.ubj")
    import joblib

    peer = root / "peer-sklearn"
    peer.mkdir()
    joblib.dump(model, peer / "model.joblib")
    peer = root / "peer-xgboost"
    peer.mkdir()
    booster.save_model(peer / "model.ubj")


def _version(folder: Path) -> Path:
    folder.mkdir(parents=True)
    document = {
        "format": 1,
        "inputs": [{"name": "x", "datatype": "FP64", "shape": [-1, COLUMNS]}],
        "outputs": [{"name": "y", "datatype": "FP64"}],
    }
    (folder / "signature.json").write_text(json.dumps(document))
    return folder


def bare(folder: Path, times: int) -> float:
    from muster_serving.predictors import load
    from muster_serving.signature import ModelSignature

    predict = load(folder, ModelSignature.load(folder / "signature.json"), [])
    row: dict[str, Any] = {"x": np.linspace(0, 1, COLUMNS).reshape(1, -1)}
    for _ in range(times // 10):
        predict(row)
    began = time.process_time()
    for _ in range(times):
        predict(row)
    return (time.process_time() - began) / times * 1e6


if __name__ == "__main__":
    if sys.argv[1] == "fit":
        fit(Path(sys.argv[2]))
    else:
        print(bare(Path(sys.argv[1]), int(sys.argv[2])))
