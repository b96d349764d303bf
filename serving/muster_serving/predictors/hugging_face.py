"""``pipeline/``: a folder of ``pipeline.save_pretrained``, of one text input; nothing is downloaded."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from muster_serving.errors import ModelError
from muster_serving.predictors import Predict
from muster_serving.signature import Signature


def load(path: Path, signature: Signature, trusted: Sequence[str]) -> Predict:  # noqa: ARG001 - no code of the folder runs
    """Load a classifier of texts. Its outputs are ``label`` and ``score``, either or both."""
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")
    import numpy as np
    from transformers import pipeline

    texts = [name for name, column in signature.inputs.items() if column.datatype == "BYTES"]
    if len(signature.inputs) != 1 or not texts:
        raise ModelError("a pipeline takes one input of BYTES; for any other, write predict.py")
    unknown = sorted(set(signature.outputs) - {"label", "score"})
    if unknown:
        raise ModelError(f"a pipeline answers label and score; the signature has {', '.join(unknown):.200}")
    ask = pipeline("text-classification", model=str(path), trust_remote_code=False)

    def predict(inputs: dict[str, Any]) -> dict[str, Any]:
        asked = inputs[texts[0]].tolist()
        found = ask(asked, batch_size=len(asked), truncation=True)
        columns = {
            "label": np.array([one["label"] for one in found], dtype=object),
            "score": np.array([one["score"] for one in found]),
        }
        return {name: columns[name] for name in signature.outputs}

    return predict
