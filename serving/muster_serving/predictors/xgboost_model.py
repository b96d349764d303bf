"""``model.ubj``: an XGBoost model in its own format, saved by ``save_model``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from muster_serving.predictors import Predict, table
from muster_serving.signature import Signature


def load(path: Path, signature: Signature, trusted: Sequence[str]) -> Predict:  # noqa: ARG001 - the format runs no code
    """Load the file; it answers what its objective answers, such as a probability."""
    import numpy as np
    import xgboost

    booster = xgboost.Booster(model_file=str(path))
    encoded = table.categorical(signature) if "c" in (booster.feature_types or ()) else ()
    columns = table.numeric(signature, what="XGBoost", encoded=encoded)
    booster.feature_names = None  # the matrix is in the signature's order

    def predict(inputs: dict[str, Any]) -> dict[str, Any]:
        answer = booster.inplace_predict(table.matrix(inputs, columns, np.float32), validate_features=False)
        return table.outputs(signature, [answer], what="the model")

    return predict
