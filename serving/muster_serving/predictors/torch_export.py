"""``model.pt2``: a program of ``torch.export.save``, which takes the inputs and answers the outputs in their order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from muster_serving.predictors import Predict, table
from muster_serving.signature import Signature


def load(path: Path, signature: Signature, trusted: Sequence[str]) -> Predict:  # noqa: ARG001 - weights alone are read
    """Load the program; a text with categories arrives as its place in them."""
    import numpy as np
    import torch

    module = torch.export.load(str(path)).module()
    columns = table.numeric(signature, what="torch.export")

    def tensor(array: Any, codes: dict[Any, int] | None) -> torch.Tensor:
        if codes is not None:
            array = np.array([codes[text] for text in array.ravel().tolist()]).reshape(array.shape)
        return torch.from_numpy(array)

    def predict(inputs: dict[str, Any]) -> dict[str, Any]:
        with torch.inference_mode():
            answer = module(*(tensor(inputs[name], codes) for name, codes in columns))
        several = answer if isinstance(answer, (tuple, list)) else (answer,)
        return table.outputs(signature, [each.numpy() for each in several], what="the program")

    return predict
