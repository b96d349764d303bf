"""``model.pt2``: a program of ``torch.export.save``, which takes the inputs and answers the outputs in their order.

Torch makes Python of its names, expressions and guards, and calls what its operators name: such a file is code, and is trusted
as a pickle is.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from muster_serving.errors import ModelError
from muster_serving.predictors import Predict, table
from muster_serving.signature import ModelSignature

_TRUST = "torch.export"


def load(path: Path, signature: ModelSignature, trusted: Sequence[str]) -> Predict:
    """Load the program; a text with categories arrives as its place in them. :raises ModelError: the Dag does not trust it."""
    if _TRUST not in trusted:
        raise ModelError(
            f"{path.name} can run any code when it is loaded or asked: save the model as model.onnx, or trust it, "
            f'trusted=["{_TRUST}"]'
        )
    import torch

    module = torch.export.load(str(path)).module()
    columns = table.numeric(signature, what="torch.export")
    signature.check_nulls("a program of torch")

    def predict(inputs: dict[str, Any]) -> dict[str, Any]:
        with torch.inference_mode():
            answer = module(
                *(torch.from_numpy(table.placed(name, inputs[name], places)) for name, places in columns)
            )
        several = answer if isinstance(answer, (tuple, list)) else (answer,)
        return table.outputs(signature, [each.numpy() for each in several], what="the program")

    return predict
