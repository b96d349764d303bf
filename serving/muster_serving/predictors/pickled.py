"""``model.pkl`` and ``model.joblib``: a pickled scikit-learn model, loaded only where the Dag trusts it."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path

from muster_serving.errors import ModelError
from muster_serving.predictors import PICKLE, Predict
from muster_serving.predictors.scikit_learn import predictor
from muster_serving.signature import Signature


def load(path: Path, signature: Signature, trusted: Sequence[str]) -> Predict:
    """Unpickle it. :raises ModelError: it is not trusted."""
    if PICKLE not in trusted:
        raise ModelError(
            f"{path.name} is a pickle, which can run any code when it is loaded: save the model as model.skops, or trust "
            'it, trusted=["pickle"]'
        )
    if path.suffix == ".joblib":
        import joblib

        return predictor(joblib.load(path), signature)
    with path.open("rb") as file:
        return predictor(pickle.load(file), signature)  # noqa: S301 the Dag trusts it
