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
from muster_serving.answer import Headers, HttpAnswer, not_allowed, not_there, refusal
from muster_serving.body import MAX_BODY_BYTES, check_length
from muster_serving.clients import RawHeaders
from muster_serving.content import is_packed, json_length, unpacked
from muster_serving.errors import PredictionError, RequestError
from muster_serving.events import one_event
from muster_serving.protocol import Question
from muster_serving.routes import ModelPath

if TYPE_CHECKING:
    from muster_serving.seldon_model import SeldonModel

logger = logging.getLogger("muster.serving")


def open_inference(model: SeldonModel) -> Blueprint:
    """Return what answers for one model version (https://github.com/kserve/open-inference-protocol)."""
    made = Blueprint("open_inference", __name__)
    made.before_app_request(partial(_answered, model))
    # The wrapper would report an unknown path as an error of its own.
    made.app_errorhandler(HTTPException)(_refused)
    return made


def _answered(model: SeldonModel) -> Response | None:
    """Answer what is asked of a path of ours, before the wrapper looks for one; None leaves it to the wrapper."""
    call = routes.call_of(request.path)
    allowed = routes.allowed(request.path, call)
    if allowed is None:
        return None
    if request.method not in allowed:
        return _sent(not_allowed(request.method, request.path, allowed))
    if call is None:
        revisions = [model.revision] if model.loaded else []
        return _sent(
            pages.page(request.path, name=model.name, revisions=revisions, signature=model.signature)
        )
    try:
        _check(model, call)
    except RequestError as error:
        return _sent(refusal(str(error), error.status))
    if call.predicts:
        return _sent(_predicted(model, call))
    return _sent(pages.described(call, model.name, model.revision, model.signature), model.headers)


def _predicted(model: SeldonModel, call: ModelPath) -> HttpAnswer:
    """Answer a prediction. A request that names the revision is a check, and not counted."""
    try:
        with model.counted() if call.revision is None else nullcontext():
            headers = [
                (key.lower().encode("latin-1"), value.encode("latin-1")) for key, value in request.headers
            ]
            question = Question(call, _body(headers), json_length(headers))
            answer = protocol.answer(model.ready(), question, of=model)
            if call.revision is None:
                model.count_values(answer.outside, places=answer.places)
    except RequestError as error:
        return refusal(str(error), error.status, model.headers)
    except PredictionError as error:
        logger.error("revision %s: %s", model.revision, error)
        return refusal(str(error), 500, model.headers)
    return one_event(answer) if call.verb == routes.STREAM else answer


def _refused(error: HTTPException) -> Response:
    """Return an HTTP error in the form that all model servers of muster use."""
    if isinstance(error, NotFound):
        return _sent(not_there(request.method, request.path))
    if isinstance(error, MethodNotAllowed):
        return _sent(not_allowed(request.method, request.path, tuple(sorted(error.valid_methods or ()))))
    return _sent(refusal(f"{request.method} {request.path!r:.80}: {error.name}", error.code or 500))


def _check(model: SeldonModel, call: ModelPath) -> None:
    """Refuse another model's name, and another revision's. :raises RequestError: 404."""
    if call.name != model.name:
        raise RequestError(f"model {call.name!r:.80} is unknown; here is {model.name}", status=404)
    if call.revision not in (None, model.revision):
        raise RequestError(
            f"revision {call.revision!r:.60} does not serve; serving is {model.revision}", status=404
        )


def _body(headers: RawHeaders) -> bytes:
    """Return the request's whole body. :raises RequestError: 413, it is too long."""
    packed, body = is_packed(headers), request.stream.read(MAX_BODY_BYTES + 1)
    check_length(len(body), MAX_BODY_BYTES)
    return unpacked(body, most=MAX_BODY_BYTES) if packed else bytes(body)


def _sent(answer: HttpAnswer, which: Headers = ()) -> Response:
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in answer.headers + which]
    return Response(answer.body, answer.status, headers)
