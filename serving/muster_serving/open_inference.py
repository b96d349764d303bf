"""The Open Inference Protocol beside Seldon's own: routes of the Flask application of Seldon Core's wrapper.

Paths, answers and metrics are the same as those of :mod:`muster_serving.front`: a release uses both servers with the
same code, and so can users.
"""

from __future__ import annotations

import logging
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING

from flask import Blueprint, Response, request
from werkzeug.exceptions import HTTPException, MethodNotAllowed, NotFound

from muster_serving import pages, protocol, routes
from muster_serving.answer import Answer, Headers, not_allowed, not_there, refusal
from muster_serving.body import MAX_BODY_BYTES, check_length
from muster_serving.clients import RawHeaders
from muster_serving.content import is_packed, json_length, unpacked
from muster_serving.errors import PredictionError, RequestError
from muster_serving.events import one_event

if TYPE_CHECKING:
    from muster_serving.seldon_model import SeldonModel

logger = logging.getLogger("muster.serving")

_ENDPOINT = str.maketrans("/.", "--")  # Flask's name of a route has no dot


def open_inference(model: SeldonModel) -> Blueprint:
    """Return the routes of one model version (https://github.com/kserve/open-inference-protocol)."""
    made = Blueprint("open_inference", __name__)

    @made.post("/v2/models/<name>/infer")
    @made.post("/v2/models/<name>/versions/<revision>/infer")
    def infer(name: str, revision: str | None = None) -> Response:
        return _predict(model, name, revision, verb="/infer")

    @made.post("/v2/models/<name>/generate_stream")
    @made.post("/v2/models/<name>/versions/<revision>/generate_stream")
    def stream(name: str, revision: str | None = None) -> Response:
        return _predict(model, name, revision, verb=routes.STREAM)

    @made.post("/v1/models/<name>:predict")
    def predict(name: str) -> Response:
        return _predict(model, name, None, verb=":predict")

    @made.get("/v2/models/<name>")
    @made.get("/v2/models/<name>/versions/<revision>")
    def describe(name: str, revision: str | None = None) -> Response:
        return _described(model, name, revision)

    @made.get("/v1/models/<name>")
    @made.get("/v2/models/<name>/ready")
    @made.get("/v2/models/<name>/versions/<revision>/ready")
    def model_ready(name: str, revision: str | None = None) -> Response:
        return _described(model, name, revision, ready=True)

    for path in routes.PAGES + routes.BESIDE:
        made.add_url_rule(path, path.translate(_ENDPOINT), partial(_page, model, path))
    made.before_app_request(_checked)
    # The wrapper would report an unknown path as an error of its own.
    made.app_errorhandler(HTTPException)(_refused)
    return made


def _predict(model: SeldonModel, name: str, revision: str | None, *, verb: str) -> Response:
    """Answer a prediction. A request that names the revision is a check, and not counted."""
    try:
        _check(model, name, revision)
    except RequestError as error:
        return _sent(refusal(str(error), error.status))
    try:
        with model.counted() if revision is None else nullcontext():
            headers = [
                (key.lower().encode("latin-1"), value.encode("latin-1")) for key, value in request.headers
            ]
            body, length = _body(headers), json_length(headers)
            answer = protocol.answer(
                model.ready(),
                body,
                verb=verb,
                json_length=length,
                name=model.name,
                revision=model.revision,
                which=model.headers,
                histograms=model.histograms,
            )
            if revision is None:
                model.count_values(answer.outside, places=answer.places)
    except RequestError as error:
        answer = refusal(str(error), error.status, model.headers)
    except PredictionError as error:
        logger.error("revision %s: %s", model.revision, error)
        answer = refusal(str(error), 500, model.headers)
    return _sent(one_event(answer) if verb == routes.STREAM and answer.status == 200 else answer)


def _described(model: SeldonModel, name: str, revision: str | None, *, ready: bool = False) -> Response:
    try:
        _check(model, name, revision)
    except RequestError as error:
        return _sent(refusal(str(error), error.status))
    if ready:
        return _sent(pages.model_ready(model.name), model.headers)
    return _sent(pages.model(model.name, model.revision, model.signature, platform=pages.ONNX), model.headers)


def _page(model: SeldonModel, path: str) -> Response:
    revisions = [model.revision] if model.loaded else []
    return _sent(pages.page(path, name=model.name, revisions=revisions, signature=model.signature))


def _checked() -> Response | None:
    """Refuse a method that a path of ours does not take: else the wrapper's own route would answer it."""
    allowed = routes.allowed(request.path, routes.call_of(request.path))
    if allowed is None or request.method in allowed:
        return None
    return _sent(not_allowed(request.method, request.path, allowed))


def _refused(error: HTTPException) -> Response:
    """Return an HTTP error in the form that all model servers of muster use."""
    if isinstance(error, NotFound):
        return _sent(not_there(request.method, request.path))
    if isinstance(error, MethodNotAllowed):
        return _sent(not_allowed(request.method, request.path, tuple(sorted(error.valid_methods or ()))))
    return _sent(refusal(f"{request.method} {request.path!r:.80}: {error.name}", error.code or 500))


def _check(model: SeldonModel, name: str, revision: str | None) -> None:
    """Refuse another model's name, and another revision's. :raises RequestError: 404."""
    if name != model.name:
        raise RequestError(f"model {name!r:.80} is unknown; here is {model.name}", status=404)
    if revision not in (None, model.revision):
        raise RequestError(
            f"revision {revision!r:.60} does not serve; serving is {model.revision}", status=404
        )


def _body(headers: RawHeaders) -> bytes:
    """Return the request's whole body. :raises RequestError: 413, it is too long."""
    packed, body = is_packed(headers), request.stream.read(MAX_BODY_BYTES + 1)
    check_length(len(body), MAX_BODY_BYTES)
    return unpacked(body, most=MAX_BODY_BYTES) if packed else bytes(body)


def _sent(answer: Answer, which: Headers = ()) -> Response:
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in answer.headers + which]
    return Response(answer.body, answer.status, headers)
