"""``pipeline/``: a folder of ``pipeline.save_pretrained``, of one text input; nothing is downloaded."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from muster_serving.errors import ModelError
from muster_serving.predictors import Predict
from muster_serving.signature import ModelSignature

_ANY = 1 << 30  # what tokenizers say that know no limit is more


def load(path: Path, signature: ModelSignature, trusted: Sequence[str]) -> Predict:  # noqa: ARG001 - no code of the folder runs
    """Load a classifier of texts, which has so many tokens of each as its model takes.

    Its outputs are ``label`` and ``score``, either or both: of the most likely label, or of the first K with the shape [-1, K].
    """
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")
    import numpy as np
    from transformers import pipeline

    texts = [name for name, column in signature.inputs.items() if column.datatype == "BYTES"]
    if len(signature.inputs) != 1 or not texts:
        raise ModelError("a pipeline takes one input of BYTES; for any other, write predict.py")
    signature.check_nulls("a pipeline")
    ask = pipeline("text-classification", model=str(path), trust_remote_code=False)
    labels, outputs = len(ask.model.config.id2label), signature.outputs.values()
    tails = {column.tail for column in outputs}
    if not set(signature.outputs) <= {"label", "score"} or len(tails) > 1 or not _fits(*tails, labels):
        wanted = f"[-1], or both of [-1, K] for the first K of its {labels} labels"
        found = ", ".join(f"{column.name} {[-1, *column.tail]}" for column in outputs)
        raise ModelError(
            f"a pipeline answers label and score of the shape {wanted}; the signature has {found:.200}"
        )
    most = min(ask.tokenizer.model_max_length, _positions(ask.model.config))
    told = {"truncation": True, "max_length": most} if most < _ANY else {"truncation": True}
    top = math.prod(*tails)

    def predict(inputs: dict[str, Any]) -> dict[str, Any]:
        asked = inputs[texts[0]].tolist()
        found = ask(asked, batch_size=len(asked), top_k=top, **told)
        columns = {}
        for name, column in signature.outputs.items():
            values = np.array([[one[name] for one in row] for row in found], dtype=column.dtype)
            columns[name] = values.reshape(len(asked), *column.tail)
        return columns

    return predict


def _positions(config: Any) -> int:
    """Return how many tokens a model has positions for."""
    positions: int = getattr(config, "max_position_embeddings", None) or _ANY
    # these count positions from beyond that of padding
    begins_late = any(
        family in config.model_type for family in ("roberta", "camembert", "mpnet", "longformer")
    )
    return positions - config.pad_token_id - 1 if begins_late else positions


def _fits(tail: tuple[int, ...], labels: int) -> bool:
    return len(tail) < 2 and math.prod(tail) <= labels
