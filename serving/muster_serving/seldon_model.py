"""The predictor under the Seldon Core Python wrapper, which the image ``seldon`` holds.

``python -m muster_serving NAME --server=seldon …``, or ``seldon-core-microservice
muster_serving.seldon_model.SeldonModel --parameters '[{"name": "model", "value": "/mnt/models", "type":
"STRING"}]'``, answers the Seldon protocol
(https://docs.seldon.ai/seldon-core-1): ``{"jsonData": {"hour": [13], …}}`` or
``{"data": {"names": ["hour", …], "ndarray": [[13, …]]}}``; and the Open Inference Protocol, on the same port
whose paths, answers and metrics are those of :mod:`muster_serving.front`: a release uses both servers with the same code, and so
can users.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from flask import Blueprint, Response, request
from seldon_core import microservice
from seldon_core.flask_utils import SeldonMicroserviceException
from werkzeug.exceptions import HTTPException, MethodNotAllowed, NotFound

from muster_serving import pages, protocol, routes
from muster_serving.answer import Headers, HttpAnswer, not_allowed, not_there, refusal, which
from muster_serving.body import MAX_BODY_BYTES, check_length
from muster_serving.clients import RawHeaders
from muster_serving.column import Array
from muster_serving.content import is_packed, json_length, unpacked
from muster_serving.errors import READING, PredictionError, RequestError
from muster_serving.events import one_event
from muster_serving.histograms import Histograms
from muster_serving.metrics import RevisionMetrics
from muster_serving.predictor import Predictor
from muster_serving.protocol import Question
from muster_serving.routes import ModelPath
from muster_serving.signature import SIGNATURE, ModelSignature

_NO_FAULT_OF_THE_MODEL = 400

logger = logging.getLogger("muster.serving")


def serve(name: str, *, model: Path, revision: str, version: str, port: int, counts_inputs: bool) -> None:
    """Serve one version until SIGTERM, by the wrapper's own command; then finish the requests under way.

    Connections are not kept alive: the wrapper would close an idle one while a gateway sends a request on it.

    :param counts_inputs: whether requests are counted by the bins of the training rows.
    :raises ModelError: the version cannot be served.
    """
    told = {"model": str(model), "name": name, "revision": revision, "version": version}
    parameters = [{"name": key, "value": value, "type": "STRING"} for key, value in told.items()]
    parameters.append({"name": "counts_inputs", "value": str(counts_inputs), "type": "BOOL"})
    sys.argv[1:] = [
        *(f"{__name__}.{SeldonModel.__name__}", f"--parameters={json.dumps(parameters)}"),
        *(f"--http-port={port}", "--grpc-workers=0", "--threads=4", "--keepalive=0", "--log-level=WARNING"),
    ]
    mine = os.getpid()
    try:
        microservice.main()
    except SystemExit as ended:
        if (
            ended.code and os.getpid() == mine
        ):  # its worker could not load the model: loading it here raises the reason
            Predictor(model)
        raise


class SeldonModel:
    """One model version, with the methods that Seldon Core's wrapper calls.

    :param model: the version's folder.
    :param name: the deployment's name, for metadata and metrics.
    :param revision: the version's revision name.
    :param version: the version's address, for a header of each answer.
    :param counts_inputs: whether requests are counted by the bins of the training rows.
    :ivar histograms: count them; None: they are not counted.
    """

    def __init__(
        self,
        model: str = "/mnt/models",
        name: str = "model",
        revision: str = "1",
        version: str = "",
        counts_inputs: bool = False,  # the wrapper passes all by name
    ) -> None:
        self.name = name
        self.revision = revision
        self._folder = Path(model)
        self.signature = ModelSignature.load(self._folder / SIGNATURE)
        self.headers = which(revision, version or None)
        self.histograms = Histograms.load(self._folder, self.signature) if counts_inputs else None
        self._counting = threading.Lock()  # the wrapper answers in several threads
        self._metrics = RevisionMetrics(name, revision, self.histograms, self.signature.inputs)
        self._predictor: Predictor | None = None

    @property
    def model_error_handler(self) -> Blueprint:
        """Our own routes. The wrapper adds the blueprint of this name to its application."""
        return _open_inference(self)

    @property
    def loaded(self) -> bool:
        """Whether the model is loaded."""
        return self._predictor is not None

    def load(self) -> None:
        """Load the model; the wrapper calls this in each worker, after the fork."""
        self._predictor = Predictor(self._folder)

    def predict(self, x: Any, names: Sequence[str], meta: Any = None) -> Any:  # noqa: ARG002 the wrapper's interface
        """Answer ``jsonData`` by columns with columns, ``ndarray`` by rows with rows of all outputs.

        :raises SeldonMicroserviceException: HTTP 400 with the wrong field, or 500 where the model failed.
        """
        try:
            with self.counted():
                answer = self._answer(x, names)
        except RequestError as error:
            raise SeldonMicroserviceException(str(error), status_code=error.status) from error
        except PredictionError as error:
            raise SeldonMicroserviceException(str(error), status_code=500, reason="MODEL_FAILED") from error
        return answer if isinstance(x, dict) else [list(row) for row in zip(*answer.values(), strict=True)]

    def _answer(self, x: Any, names: Sequence[str]) -> dict[str, list[Any]]:
        """Return lists by output."""
        predictor = self.ready()
        given = x if isinstance(x, dict) else self._columns(x, names)
        with READING:
            columns, rows = protocol.read_columns(predictor.signature, given)
        answer = predictor.predict(columns, rows)
        places = self.histograms.places(columns, rows) if self.histograms else None
        self.count_values(predictor.signature.outside(columns), places=places)
        return {name: array.tolist() for name, array in answer.items()}

    def count_values(self, outside: tuple[str, ...], *, places: tuple[int, ...] | None) -> None:
        """Count what an answered request of a user holds.

        :param outside: the inputs with a value that no training row had. :param places: the bins of its values; None: they are
            not counted.
        """
        self._metrics.outside(outside)
        if places is not None and self.histograms:
            with self._counting:
                self.histograms.count(places)

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count the block as one request: answered, refused or failed, by the error that it raises."""
        started, status = time.perf_counter(), 500
        try:
            yield
            status = 200
        except RequestError as error:
            status = min(error.status, _NO_FAULT_OF_THE_MODEL)
            raise
        finally:
            self._metrics.count(status, time.perf_counter() - started)

    def ready(self) -> Predictor:
        """Return the loaded predictor. :raises SeldonMicroserviceException: HTTP 503, the model is not loaded."""
        if self._predictor is None:
            raise SeldonMicroserviceException(f"{self.name} is not loaded yet", status_code=503)
        return self._predictor

    def class_names(self) -> list[str]:
        """Return the names of the columns of an answer in rows."""
        return list(self.signature.outputs)

    def tags(self) -> dict[str, str]:
        """Return the tags of each answer."""
        return {"revision": self.revision}

    def health_status(self) -> dict[str, Any]:
        """Return which revision is loaded. :raises SeldonMicroserviceException: HTTP 503, none is."""
        self.ready()
        return {"ready": True, "revision": self.revision}

    def init_metadata(self) -> dict[str, Any]:
        """Return the model's metadata; its tensors are those of its signature."""
        return pages.metadata(self.name, self.revision, self.signature)

    def _columns(self, x: Array, names: Sequence[str]) -> dict[str, list[Any]]:
        """Turn rows into columns; numpy has given all values one type."""
        if getattr(x, "ndim", 0) != 2 or x.shape[1] != len(names):
            shape = list(getattr(x, "shape", []))
            raise RequestError(f"data: found shape {shape} and {len(names)} names; expected rows by names")
        return dict(zip(names, x.T.tolist(), strict=True))


def _open_inference(model: SeldonModel) -> Blueprint:
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
