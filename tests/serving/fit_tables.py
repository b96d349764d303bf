"""Runs in the image ``tables``, as a job's code does: fits small models and writes each as a version, with its signature.

``python fit_tables.py FOLDER SEED`` writes FOLDER/NAME for each, and FOLDER/expected.json: rows, and what each answers
them. Each seed has rows of its own.
"""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np  # noqa: TID253 - it runs in the image
import pandas as pd  # noqa: TID253 - as numpy
import polars as pl
import skops.io
import xgboost
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import muster

ZONES = ["airport", "centre", "harbour"]


def rows(seed: int) -> pd.DataFrame:
    """The 400 rows of a seed."""
    random = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "zone": pd.Categorical(random.choice(ZONES, 400), categories=ZONES),
            "hour": random.integers(0, 24, 400).astype("int64"),
            "area": random.normal(50, 10, 400).astype("float32"),
        }
    )


def main() -> None:
    root, frame = Path(sys.argv[1]), rows(int(sys.argv[2]))
    late = ((frame["hour"] > 12) ^ (frame["zone"] == "centre")).astype(int).to_numpy()
    codes = np.column_stack([frame["zone"].cat.codes, frame["hour"], frame["area"]]).astype("float32")
    few = frame.head(5)
    asked = {"zone": few["zone"].tolist(), "hour": few["hour"].tolist(), "area": few["area"].tolist()}
    expected: dict[str, Any] = {}

    def write(name: str, answers: Any, outputs: Any = None) -> Path:
        folder = root / name
        folder.mkdir(parents=True)
        answers = np.asarray(answers, "float64")
        muster.signature(inputs=frame, outputs=outputs or {"probability": answers}, closed=["zone"]).save(
            folder
        )
        expected[name] = answers[:5].tolist()
        return folder

    before = make_column_transformer((OneHotEncoder(), ["zone"]), (StandardScaler(), ["hour", "area"]))
    model = make_pipeline(before, LogisticRegression()).fit(frame.astype({"zone": str}), late)
    answers = model.predict_proba(frame.astype({"zone": str}))[:, 1]
    skops.io.dump(model, write("sklearn", answers) / "model.skops")
    matrix = LogisticRegression(max_iter=1000).fit(codes.astype("float64"), late)
    answers = matrix.predict_proba(codes.astype("float64"))[:, 1]
    with (write("pickle", answers) / "model.pkl").open("wb") as file:
        pickle.dump(matrix, file)
    booster = xgboost.train({"objective": "binary:logistic", "nthread": 1}, xgboost.DMatrix(codes, late), 8)
    booster.save_model(write("xgboost", booster.inplace_predict(codes)) / "model.ubj")
    trees = lightgbm.train(
        {"objective": "binary", "verbose": -1, "num_threads": 1}, lightgbm.Dataset(codes, late), 8
    )
    trees.save_model(write("lightgbm", trees.predict(codes)) / "model.lightgbm.txt")

    by_pandas = muster.signature(inputs=frame, outputs=pd.Series(answers, name="probability"))
    by_polars = muster.signature(
        inputs=pl.DataFrame({n: pl.Series(frame[n].tolist(), dtype=t) for n, t in _POLARS.items()}),
        outputs=pl.Series("probability", answers),
    )
    for entry in by_pandas.document["inputs"]:
        entry.pop("frame", None)
    assert by_pandas == by_polars, (by_pandas, by_polars)
    (root / "expected.json").write_text(json.dumps({"asked": asked, "expected": expected}))


_POLARS = {"zone": pl.Enum(ZONES), "hour": pl.Int64, "area": pl.Float32}

if __name__ == "__main__":
    main()
