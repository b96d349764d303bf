"""One request and its answer in the words of the Open Inference Protocol, version 2.

https://github.com/kserve/open-inference-protocol
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from muster.core.deployment import Answer, SmokeRequest
from muster.core.errors import DeploymentError

_SAID = 300  # characters of an answer that is no prediction


def infer_request(request: SmokeRequest, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Write a request with the types that the model says it takes.

    :param metadata: what the model's own page says.
    :raises DeploymentError: the model has no such input.
    """
    tensors = {tensor["name"]: tensor for tensor in metadata["inputs"]}
    inputs = []
    for name, column in request.inputs.items():
        if name not in tensors:
            raise DeploymentError(f"input {name!r:.80} is unknown; this model takes {', '.join(tensors)}")
        shape = [len(column), *tensors[name]["shape"][1:]]
        inputs.append(
            {"name": name, "datatype": tensors[name]["datatype"], "shape": shape, "data": list(column)}
        )
    return {"inputs": inputs}


def read_answer(replica: str, status: int, body: bytes) -> Answer:
    """Return what a replica answered, columns by name, or why that is no prediction.

    A value of an output with more dimensions than one is a tuple, with all its numbers.
    """
    if status != 200:
        return Answer(replica=replica, outputs=None, error=f"HTTP {status}: {_said(body)}")
    try:
        outputs = {each["name"]: _column(each) for each in json.loads(body)["outputs"]}
    except (ValueError, LookupError, TypeError):
        return Answer(replica=replica, outputs=None, error=f"no prediction: {_said(body)}")
    return Answer(replica=replica, outputs=outputs)


def _column(output: Mapping[str, Any]) -> tuple[Any, ...]:
    data: Sequence[Any] = output["data"]
    rows, *tail = output["shape"]
    width = math.prod(tail)
    if len(data) != rows * width:
        raise ValueError("an output's data does not fill its shape")
    if not tail:
        return tuple(data)
    return tuple(tuple(data[row * width : (row + 1) * width]) for row in range(rows))


def _said(body: bytes) -> str:
    """What a server says that is not well: the protocol puts it under ``error``, Kubernetes under ``message``."""
    text = body.decode("utf-8", "replace")
    with suppress(ValueError):
        found = json.loads(text)
        said = [found[key] for key in ("error", "message") if key in found] if isinstance(found, dict) else []
        text = str(said[0]) if said else text
    return " ".join(text.split())[:_SAID] or "nothing"
