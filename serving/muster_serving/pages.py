"""A model server's pages on itself and its model, for any server around it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from muster_serving import metrics, openapi
from muster_serving.answer import Answer
from muster_serving.docs_page import docs_page
from muster_serving.signature import Signature

_HTML = ((b"content-type", b"text/html; charset=utf-8"),)
_FIXED = {
    "/": {"status": "alive"},
    "/v2/health/live": {"live": True},
    "/v2": {"name": "muster", "version": "1", "extensions": ["binary_tensor_data"]},
}


def page(path: str, *, name: str, revisions: Sequence[str], signature: Signature | None) -> Answer:
    """Return one of the server's pages, :mod:`~muster_serving.routes` names them.

    :param name: the deployment's.
    :param revisions: those that have a share, the greatest first.
    :param signature: of the model that is described; None where none is loaded here.
    """
    if path == "/metrics":
        return metrics.page()
    if path == "/v2/health/ready":
        return Answer(200 if revisions else 503, orjson.dumps({"ready": bool(revisions)}))
    if path in _FIXED:
        return Answer(200, orjson.dumps(_FIXED[path]))
    if path == "/v1/models":
        return Answer(200, orjson.dumps({"models": [name]}))
    document = openapi.document(name, revisions, signature)
    if path == "/openapi.json":
        return Answer(200, orjson.dumps(document))
    return Answer(200, docs_page(document, signature).encode(), _HTML)


def model_ready(name: str) -> Answer:
    """Return that a model answers."""
    return Answer(200, orjson.dumps({"name": name, "ready": True}))


def model(name: str, revision: str, signature: Signature) -> Answer:
    """Return a model's metadata, as an answer."""
    return Answer(200, orjson.dumps(metadata(name, revision, signature)))


def metadata(name: str, revision: str, signature: Signature) -> dict[str, Any]:
    """Return a model's metadata, its tensors by the model's own signature."""
    return {
        "name": name,
        "versions": [revision],
        "platform": "onnxruntime_onnx",
        **signature.metadata(),
    }
