"""Requests and answers in the words of the Open Inference Protocol, the same on one machine and on a cluster.

See https://github.com/kserve/open-inference-protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muster.core.deployment import Answer, SmokeRequest
from muster.core.errors import DeploymentError


def infer_request(request: SmokeRequest, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Write a request in the protocol's words, with the types that the model's metadata says it takes.

    :raises DeploymentError: the model takes no such input, or its metadata is not the protocol's.
    """
    try:
        tensors = {each["name"]: (each["datatype"], each["shape"][1:]) for each in metadata["inputs"]}
    except (KeyError, TypeError) as error:
        raise DeploymentError(f"it describes itself as {metadata!r:.120}, expected inputs") from error
    inputs = []
    for name, column in request.inputs.items():
        if name not in tensors:
            raise DeploymentError(f"input {name!r:.80} is unknown; this model takes {', '.join(tensors)}")
        datatype, tail = tensors[name]
        shape = [len(column), *tail]
        inputs.append({"name": name, "datatype": datatype, "shape": shape, "data": list(column)})
    return {"inputs": inputs}


def read_answer(replica: str, document: Mapping[str, Any]) -> Answer:
    """Read an answer in the protocol's words; what is not in them is an answer with an error."""
    try:
        outputs = {output["name"]: tuple(output["data"]) for output in document["outputs"]}
    except (KeyError, TypeError):
        return Answer(replica=replica, outputs=None, error=f"it answers {document!r:.120}, expected outputs")
    return Answer(replica=replica, outputs=outputs)
