"""The predictor of a version in this process, without a front: rows are scored as a worker answers them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from muster_serving.column import Array
from muster_serving.errors import PredictionError, RequestError
from muster_serving.process.frames import ANSWER, WRONG
from muster_serving.process.layout import RecordLayout
from muster_serving.process.worker import Model

_MEMORY = "there is: raise memory_gib of the task's resources, or have fewer processes at once (cpus)"


class AlonePredictor:
    """One loaded version that answers in the process of its caller, through the same records as in a worker."""

    def __init__(self, folder: Path, *, trusted: Sequence[str]) -> None:
        """Load it. :raises ModelError: it cannot be loaded; the message says why."""
        self._model = Model(folder, trusted=trusted, memory=_MEMORY)
        self.signature = self._model.signature
        self._inputs = RecordLayout(self.signature.inputs.values())
        self._outputs = RecordLayout(self.signature.outputs.values())

    def predict(self, columns: Mapping[str, list[Any] | Array], rows: int) -> dict[str, Array]:
        """Answer as :meth:`muster_serving.process.predictor.ProcessPredictor.predict` does, for the same arguments."""
        ((kind, data),) = self._model.answer([(rows, self._inputs.pack_values(columns, rows))])
        if kind != ANSWER:
            raise (RequestError if kind == WRONG else PredictionError)(data.decode())
        return self._outputs.unpack(data, rows)
