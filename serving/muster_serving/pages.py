"""The pages of a model server about itself and its model, independent of the server around it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from muster_serving import metrics, openapi
from muster_serving.answer import HttpAnswer
from muster_serving.openapi import docs_page
from muster_serving.routes import ModelPath
from muster_serving.signature import ModelSignature

ONNX, PYTHON = "onnxruntime_onnx", "python"

_HTML = ((b"content-type", b"text/html; charset=utf-8"),)
_FIXED = {
    "/": {"status": "alive"},
    "/v2/health/live": {"live": True},
    "/v2": {"name": "muster", "version": "1", "extensions": ["binary_tensor_data"]},
}


def page(path: str, *, name: str, revisions: Sequence[str], signature: ModelSignature | None) -> HttpAnswer:
    """Return one of the server's pages, whose paths are in :mod:`~muster_serving.routes`.

    :param name: the deployment's.
    :param revisions: those that have a share, the greatest first.
    :param signature: of the described model; None where none is loaded in this process.
    """
    if path == "/metrics":
        return metrics.page()
    if path == "/v2/health/ready":
        return HttpAnswer(200 if revisions else 503, orjson.dumps({"ready": bool(revisions)}))
    if path in _FIXED:
        return HttpAnswer(200, orjson.dumps(_FIXED[path]))
    if path == "/v1/models":
        return HttpAnswer(200, orjson.dumps({"models": [name]}))
    document = openapi.document(name, revisions, signature)
    if path == "/openapi.json":
        return HttpAnswer(200, orjson.dumps(document))
    return HttpAnswer(200, docs_page(document, signature).encode(), _HTML)


def described(
    call: ModelPath, name: str, revision: str, signature: ModelSignature, *, platform: str = ONNX
) -> HttpAnswer:
    """Return the answer about a model that is ready: that it is, or its metadata where `call` asks for them."""
    if call.verb == "/ready" or call.protocol == "v1":
        return HttpAnswer(200, orjson.dumps({"name": name, "ready": True}))
    return HttpAnswer(200, orjson.dumps(metadata(name, revision, signature, platform=platform)))


def metadata(name: str, revision: str, signature: ModelSignature, *, platform: str = ONNX) -> dict[str, Any]:
    """Return a model's metadata; its tensors are those of its signature.

    :param platform: what computes it, in the protocol's words.
    """
    return {
        "name": name,
        "versions": [revision],
        "platform": platform,
        **signature.metadata(),
    }
