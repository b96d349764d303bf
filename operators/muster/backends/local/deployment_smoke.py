"""Smoke requests in the words of the Open Inference Protocol, and whether an answer is as expected."""

from __future__ import annotations

from typing import Any

from muster.core.deployment import SmokeRequest
from muster.core.errors import DeploymentError


def infer_request(request: SmokeRequest, metadata: dict[str, Any]) -> dict[str, Any]:
    """Write a smoke request in the Open Inference Protocol, with the types that the model says it takes."""
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


def check_answer(request: SmokeRequest, answer: dict[str, Any]) -> None:
    """Raise DeploymentError where an answer is not as a smoke request expects."""
    outputs = {output["name"]: output["data"] for output in answer["outputs"]}
    for name, bounds in request.expect.items():
        if name not in outputs:
            raise DeploymentError(f"output {name!r:.80} is expected; the model answers {', '.join(outputs)}")
        for value in outputs[name]:
            if not isinstance(value, (int, float)):
                raise DeploymentError(f"output {name!r} is {value!r:.40}, expected a number")
            if not bounds.get("min", value) <= value <= bounds.get("max", value):
                wanted = " and ".join(
                    f"{kind} {bound:g}" for kind, bound in sorted(bounds.items(), reverse=True)
                )
                raise DeploymentError(f"output {name!r} is {value!r:.40}, expected {wanted}")
