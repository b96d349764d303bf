"""The Open Inference Protocol beside Seldon's own, as routes of the application that Seldon Core's wrapper makes.

Paths, answers, counts and their page are those of :mod:`muster_serving.front`, so that a release asks both servers
by one code, and their users need not know which it is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING

import orjson
from flask import Blueprint, Response, request
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from werkzeug.exceptions import HTTPException

from muster_serving import protocol
from muster_serving.body import MAX_BODY_BYTES
from muster_serving.errors import PredictionError, RequestError
from muster_serving.predictor import Predictor

if TYPE_CHECKING:
    from muster_serving.seldon_model import SeldonModel

Compute = Callable[[Predictor, bytes], bytes]

logger = logging.getLogger("muster.serving")


def open_inference(model: SeldonModel) -> Blueprint:
    """Return the routes of one model version (https://github.com/kserve/open-inference-protocol)."""
    made = Blueprint("open_inference", __name__)

    @made.post("/v2/models/<name>/infer")
    @made.post("/v2/models/<name>/versions/<revision>/infer")
    def infer(name: str, revision: str | None = None) -> Response:
        compute = partial(protocol.infer_v2, name=model.name, revision=model.revision)
        return _predict(model, name, revision, compute)

    @made.post("/v1/models/<name>:predict")
    def predict(name: str) -> Response:
        return _predict(model, name, None, protocol.predict_v1)

    @made.get("/v2/models/<name>")
    @made.get("/v2/models/<name>/versions/<revision>")
    def describe(name: str, revision: str | None = None) -> Response:
        return _described(model, name, revision)

    @made.get("/v2/health/ready")
    def ready() -> Response:
        return _answer(200 if model.loaded else 503, orjson.dumps({"ready": model.loaded}))

    @made.get("/metrics")
    def metrics() -> Response:
        return Response(generate_latest(), mimetype=CONTENT_TYPE_LATEST)

    @made.app_errorhandler(
        HTTPException
    )  # the wrapper would call a path that is not there an error of its own
    def refuse(error: HTTPException) -> Response:
        said = protocol.error(f"{request.method} {request.path!r:.80}: {error.name}")
        return _answer(error.code or 500, said)

    return made


def _predict(model: SeldonModel, name: str, revision: str | None, compute: Compute) -> Response:
    """Answer a prediction. One that names the revision is a check of it, and not counted."""
    try:
        _check(model, name, revision)
        with model.counted() if revision is None else nullcontext():
            return _answer(200, compute(model.ready(), _body()))
    except RequestError as error:
        return _answer(error.status, protocol.error(str(error)))
    except PredictionError as error:
        logger.error("revision %s: %s", model.revision, error)
        return _answer(500, protocol.error(str(error)))


def _described(model: SeldonModel, name: str, revision: str | None) -> Response:
    try:
        _check(model, name, revision)
    except RequestError as error:
        return _answer(error.status, protocol.error(str(error)))
    return _answer(200, orjson.dumps(model.init_metadata()))


def _check(model: SeldonModel, name: str, revision: str | None) -> None:
    """Refuse another model's name, and another revision's. :raises RequestError: 404."""
    if name != model.name:
        raise RequestError(f"model {name!r:.80} is unknown; here is {model.name}", status=404)
    if revision not in (None, model.revision):
        raise RequestError(
            f"revision {revision!r:.60} does not serve; serving is {model.revision}", status=404
        )


def _body() -> bytes:
    """Return the request's whole body. :raises RequestError: 413, it is too long."""
    body: bytes = request.stream.read(MAX_BODY_BYTES + 1)
    if len(body) > MAX_BODY_BYTES:
        raise RequestError(
            f"the body has more than {MAX_BODY_BYTES} bytes: send fewer rows a request", status=413
        )
    return body


def _answer(status: int, payload: bytes) -> Response:
    return Response(payload, status, mimetype="application/json")
