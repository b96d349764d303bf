"""``model.lightgbm.txt``: a LightGBM model in its own format, saved by ``save_model``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from muster_serving.predictors import Predict, table
from muster_serving.signature import Signature


def load(path: Path, signature: Signature, trusted: Sequence[str]) -> Predict:  # noqa: ARG001 - the format runs no code
    """Load the file; it answers what its objective answers, such as a probability."""
    import lightgbm
    import numpy as np

    booster = lightgbm.Booster(model_file=str(path))
    encoded = table.categorical(signature) if booster.pandas_categorical else ()
    columns = table.numeric(signature, what="LightGBM", encoded=encoded)

    def predict(inputs: dict[str, Any]) -> dict[str, Any]:
        answer = booster.predict(table.matrix(inputs, columns, np.float64), num_threads=1)
        return table.outputs(signature, [answer], what="the model")

    return predict
