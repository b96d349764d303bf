"""Boosters in their libraries' own formats: XGBoost's ``model.ubj`` and LightGBM's ``model.lightgbm.txt``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np  # noqa: TID253 - the model has it

from muster_serving.predictors import Predict, table
from muster_serving.signature import ModelSignature


def load(path: Path, signature: ModelSignature, trusted: Sequence[str]) -> Predict:  # noqa: ARG001 - the formats run no code
    """Load the file; it answers what its objective answers, such as a probability."""
    return _xgboost(path, signature) if path.suffix == ".ubj" else _lightgbm(path, signature)


def _xgboost(path: Path, signature: ModelSignature) -> Predict:
    import xgboost

    booster = xgboost.Booster(model_file=str(path))
    encoded = table.categorical(signature) if "c" in (booster.feature_types or ()) else ()
    columns = table.numeric(signature, what="XGBoost", encoded=encoded)
    booster.feature_names = None  # the matrix is in the signature's order

    def predict(inputs: dict[str, Any]) -> dict[str, Any]:
        answer = booster.inplace_predict(table.matrix(inputs, columns, np.float32), validate_features=False)
        return table.outputs(signature, [answer], what="the model")

    return predict


def _lightgbm(path: Path, signature: ModelSignature) -> Predict:
    import lightgbm

    booster = lightgbm.Booster(model_file=str(path))
    encoded = table.categorical(signature) if booster.pandas_categorical else ()
    columns = table.numeric(signature, what="LightGBM", encoded=encoded)

    def predict(inputs: dict[str, Any]) -> dict[str, Any]:
        answer = booster.predict(table.matrix(inputs, columns, np.float64), num_threads=1)
        return table.outputs(signature, [answer], what="the model")

    return predict
