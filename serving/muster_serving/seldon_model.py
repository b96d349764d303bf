"""The predictor under the Seldon Core Python wrapper, the command of the image ``seldon``.

``seldon-core-microservice muster_serving.seldon_model.SeldonModel --parameters '[{"name": "model",
"value": "/mnt/models", "type": "STRING"}]'`` answers the Seldon protocol
(https://docs.seldon.ai/seldon-core-1): ``{"jsonData": {"hour": [13], …}}`` or
``{"data": {"names": ["hour", …], "ndarray": [[13, …]]}}``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from seldon_core.flask_utils import SeldonMicroserviceException

from muster_serving import protocol
from muster_serving.column import Array
from muster_serving.errors import PredictionError, RequestError
from muster_serving.predictor import SIGNATURE, Predictor
from muster_serving.signature import Signature


class SeldonModel:
    """One model version as the wrapper wants it.

    :param model: the version's folder.
    :param name: the deployment's name, for metadata and metrics.
    :param revision: what the version is called.
    """

    def __init__(self, model: str = "/mnt/models", name: str = "model", revision: str = "1") -> None:
        self._folder = Path(model)
        self._name = name
        self._revision = revision
        self._signature = Signature.load(self._folder / SIGNATURE)
        self._predictor: Predictor | None = None

    def load(self) -> None:
        """Load the model; the wrapper calls this in each worker, after the fork."""
        self._predictor = Predictor(self._folder)

    def predict(self, x: Any, names: Sequence[str], meta: Any = None) -> Any:  # noqa: ARG002 the wrapper's interface
        """Answer ``jsonData`` by columns with columns, ``ndarray`` by rows with rows of all outputs.

        :raises SeldonMicroserviceException: HTTP 400 and the field, or 500 where the model failed.
        """
        try:
            if isinstance(x, dict):
                return protocol.predict_columns(self._ready(), x)
            answer = protocol.predict_columns(self._ready(), self._columns(x, names))
        except RequestError as error:
            raise SeldonMicroserviceException(str(error), status_code=error.status) from error
        except PredictionError as error:
            raise SeldonMicroserviceException(str(error), status_code=500, reason="MODEL_FAILED") from error
        return [list(row) for row in zip(*answer.values(), strict=True)]

    def class_names(self) -> list[str]:
        """Return what the columns of an answer in rows are."""
        return list(self._signature.outputs)

    def tags(self) -> dict[str, str]:
        """Return what each answer says of itself."""
        return {"revision": self._revision}

    def metrics(self) -> list[dict[str, Any]]:
        """Return what is counted for each request, beside the wrapper's own times and outcomes."""
        tags = {"model": self._name, "revision": self._revision}
        return [{"type": "COUNTER", "key": "muster_requests_total", "value": 1, "tags": tags}]

    def health_status(self) -> dict[str, Any]:
        """Return which revision is loaded. :raises SeldonMicroserviceException: HTTP 503, none is."""
        self._ready()
        return {"ready": True, "revision": self._revision}

    def init_metadata(self) -> dict[str, Any]:
        """Return the model's metadata, its tensors by the model's own signature."""
        return {
            "name": self._name,
            "versions": [self._revision],
            "platform": "onnxruntime_onnx",
            **self._signature.metadata(),
        }

    def _ready(self) -> Predictor:
        if self._predictor is None:
            raise SeldonMicroserviceException(f"{self._name} is not loaded yet", status_code=503)
        return self._predictor

    def _columns(self, x: Array, names: Sequence[str]) -> dict[str, list[Any]]:
        """Cut rows into columns; numpy made one type of them all, so whole numbers are told again."""
        if getattr(x, "ndim", 0) != 2 or x.shape[1] != len(names):
            shape = list(getattr(x, "shape", []))
            raise RequestError(f"data: found shape {shape} and {len(names)} names; expected rows by names")
        return {
            name: [self._value(name, value) for value in column]
            for name, column in zip(names, x.T.tolist(), strict=True)
        }

    def _value(self, name: str, value: Any) -> Any:
        column = self._signature.inputs.get(name)
        whole = column is not None and int in column.accepted and float not in column.accepted
        return int(value) if whole and isinstance(value, float) and value.is_integer() else value
