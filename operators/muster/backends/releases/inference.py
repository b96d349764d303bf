"""Requests and answers in the words of the Open Inference Protocol, the same on one machine and on a cluster.

See https://github.com/kserve/open-inference-protocol.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from http import HTTPStatus
from typing import Any

from muster.core.deployment import Answer, SmokeRequest
from muster.core.errors import DeploymentError

_LARGEST_BYTES = 64 << 20
_SAID = 360  # characters of what is no answer: a server tells 300 of what its runtime said, and the cause comes last

Exchange = Callable[[str, bytes | None], tuple[int, bytes]]
"""Takes a path, and the body that is posted to it, if any; returns the status and the body of the answer."""


class NoAnswer(DeploymentError):
    """A replica cannot be reached; its platform may know more in a moment."""


def ask(replica: str, model: str, request: SmokeRequest, exchange: Exchange) -> Answer:
    """Send a request to a model of a replica; what goes wrong is an answer with an error.

    :param model: its path. :param exchange: may raise DeploymentError, such as :class:`NoAnswer`.
    """
    try:
        asked = infer_request(request, _document(*exchange(model, None)))
        return read_answer(replica, _document(*exchange(f"{model}/infer", json.dumps(asked).encode())))
    except DeploymentError as error:
        return Answer(replica=replica, outputs=None, error=str(error), silent=isinstance(error, NoAnswer))


def exchanged(
    address: tuple[str, int],
    path: str,
    body: bytes | None = None,
    *,
    headers: Mapping[str, str],
    seconds: float,
) -> tuple[int, bytes]:
    """Ask over HTTP, and return the status and the body of the answer. :raises DeploymentError: there is none."""
    try:
        with closing(http.client.HTTPConnection(*address, timeout=seconds)) as connection:
            connection.request("GET" if body is None else "POST", path, body, dict(headers))
            answer = connection.getresponse()
            return answer.status, answer.read(_LARGEST_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise DeploymentError(f"{path}: no answer ({type(error).__name__}: {error})") from error


def told(data: bytes) -> str:
    """Return what an answer says that is none of a model's: its ``error`` or ``message``, or all of it."""
    try:
        found = json.loads(data)
        said = found.get("error") or found.get("message")
    except (ValueError, AttributeError):
        said = None
    return str(said or data.decode("utf-8", "replace"))[:_SAID]


def _document(status: int, data: bytes) -> Mapping[str, Any]:
    with suppress(ValueError):
        found = json.loads(data)
        if status == HTTPStatus.OK and isinstance(found, dict):
            return found
    raise DeploymentError(f"HTTP {status}: {told(data)}")


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
