"""A scikit-learn model: ``model.skops``, loaded without running code (https://skops.readthedocs.io), or a pickle that is trusted."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from muster_serving.errors import ModelError
from muster_serving.predictors import PICKLE, Predict, table
from muster_serving.signature import ModelSignature


def load(path: Path, signature: ModelSignature, trusted: Sequence[str]) -> Predict:
    """Load the file. :raises ModelError: it can run code, or holds types that can, and the Dag does not trust these."""
    if path.suffix == ".skops":
        return predictor(_without_code(path, trusted), signature)
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


def _without_code(path: Path, trusted: Sequence[str]) -> Any:
    import skops.io

    unknown = set(skops.io.get_untrusted_types(file=path)) - set(trusted)
    if unknown:
        raise ModelError(
            f"{path.name} holds types that can run code when they are loaded: let the operator trust them, "
            f"trusted={sorted({*trusted, *unknown})!r}, or leave them out of the model"
        )
    return skops.io.load(path, trusted=list(trusted))


def predictor(model: Any, signature: ModelSignature) -> Predict:
    """Return the function of a loaded model: probabilities where it has them and the signature wants numbers, else
    predictions.

    A model that was fitted on a frame gets a frame of the inputs, with the types of columns that it was fitted on, any other a
    matrix of all inputs side by side.
    """
    first = next(iter(signature.outputs.values()))
    ask = model.predict
    if hasattr(model, "predict_proba") and first.datatype in ("FP32", "FP64"):
        ask = model.predict_proba
    if getattr(model, "feature_names_in_", None) is not None:
        names = list(model.feature_names_in_)
        missing = sorted(set(names) - set(signature.inputs))
        if missing:
            raise ModelError(
                f"the model was fitted on {', '.join(names):.300}; the signature's inputs lack {', '.join(missing):.200}"
            )
        frame = table.framing(signature, names)

        def by_frame(inputs: dict[str, Any]) -> dict[str, Any]:
            return table.outputs(signature, [ask(frame(inputs))], what="the model")

        return by_frame
    import numpy as np

    columns = table.numeric(signature, what="a model that was fitted on a matrix")

    def by_matrix(inputs: dict[str, Any]) -> dict[str, Any]:
        return table.outputs(signature, [ask(table.matrix(inputs, columns, np.float64))], what="the model")

    return by_matrix
