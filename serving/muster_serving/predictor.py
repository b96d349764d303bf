"""The predictor: one model version on ONNX Runtime, whatever server is around it.

A version's folder holds ``model.onnx`` and ``signature.json``. The graph's tensors must be those
of the signature; that is checked when it is loaded, so that no request finds out.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnxruntime as ort
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

from muster_serving.errors import ModelError, PredictionError, RequestError
from muster_serving.signature import Array, Column, Signature

MODEL = "model.onnx"
SIGNATURE = "signature.json"

_GRAPH_TYPES = {
    "BOOL": "tensor(bool)",
    "FP32": "tensor(float)",
    "FP64": "tensor(double)",
    "BYTES": "tensor(string)",
}


class Predictor:
    """One loaded model version. Predictions may run in several threads at once."""

    def __init__(self, folder: Path) -> None:
        """Load a version's folder.

        :raises ModelError: model or signature is missing, broken, or they do not fit each other.
        """
        self.folder = folder
        self.signature = Signature.load(folder / SIGNATURE)
        self._outputs = list(self.signature.outputs)
        self._session = _session(folder / MODEL)
        _check_graph("input", self.signature.inputs, self._session.get_inputs())
        _check_graph("output", self.signature.outputs, self._session.get_outputs())

    def predict(self, feeds: Mapping[str, Array], rows: int) -> dict[str, Array]:
        """Run the graph on tensors of `rows` rows that the signature has passed.

        :raises RequestError: the graph itself refuses the values, such as an index out of its table.
        :raises PredictionError: the graph failed, or its answer breaks the signature.
        """
        try:
            arrays = self._session.run(self._outputs, feeds)
        except InvalidArgument as error:
            raise RequestError(
                f"the model refuses these values: {str(error).splitlines()[0]:.300}"
            ) from error
        except Exception as error:  # ONNX Runtime has no common base class of its own
            raise PredictionError(f"the model failed: {type(error).__name__}: {error!s:.300}") from error
        answer = dict(zip(self._outputs, arrays, strict=True))
        for name, array in answer.items():
            self.signature.outputs[name].check_answer(array, rows)
        return answer

    def __getstate__(self) -> Path:
        return self.folder  # a session cannot be pickled: the other process loads its own

    def __setstate__(self, folder: Path) -> None:
        self.__init__(folder)  # type: ignore[misc]


def _session(path: Path) -> ort.InferenceSession:
    if not path.is_file():
        raise ModelError(f"{path.name} is missing from {path.parent}")
    options = ort.SessionOptions()
    options.intra_op_num_threads = (
        1  # small models lose by threads: 1738 against 656 microseconds at batch 32
    )
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    try:
        return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime has no common base class of its own
        raise ModelError(f"{path.name} cannot be loaded: {error!s:.300}") from error


def _check_graph(side: str, columns: Mapping[str, Column], tensors: list[Any]) -> None:
    found = {tensor.name: tensor for tensor in tensors}
    if set(found) != set(columns):
        raise ModelError(
            f"the signature's {side}s are {', '.join(sorted(columns))}, the graph's are {', '.join(sorted(found))}"
        )
    for name, column in columns.items():
        datatype = column.graph_datatype
        wanted = _GRAPH_TYPES.get(datatype, f"tensor({datatype.lower()})")
        if found[name].type != wanted:
            raise ModelError(
                f"{side} {name!r}: the signature says {column.datatype}, the graph {found[name].type}"
            )
        shape = found[name].shape
        if shape and len(shape) != 1 + len(column.tail):
            raise ModelError(
                f"{side} {name!r}: the signature has {1 + len(column.tail)} dimensions, the graph {shape}"
            )
