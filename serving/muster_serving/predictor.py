"""The predictor: one model version on ONNX Runtime, independent of the server around it.

A version's folder holds ``model.onnx`` and ``signature.json``. The graph's tensors must match
the signature; that is checked when the version is loaded, before any request.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np  # noqa: TID253 - the server cannot do without; nothing that Airflow parses imports it
import onnxruntime as ort

from muster_serving.column import Array, Column
from muster_serving.errors import ModelError, PredictionError
from muster_serving.signature import SIGNATURE, ModelSignature

MODEL = "model.onnx"

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

        :raises ModelError: the model or the signature is missing or broken, or the two do not match.
        """
        self.folder = folder
        self.signature = ModelSignature.load(folder / SIGNATURE).with_places()
        self._outputs = list(self.signature.outputs)
        self._session = _session(folder / MODEL)
        self.signature.check_nulls("a graph")
        self.signature.check_categories("a graph")
        _check_graph("input", self.signature.inputs, self._session.get_inputs())
        _check_graph("output", self.signature.outputs, self._session.get_outputs())
        self._row = _Row(self._session, self.signature) if _fixed(self.signature) else None

    def predict(self, columns: Mapping[str, list[Any] | Array], rows: int) -> dict[str, Array]:
        """Check the values of every input, run the graph on them and check its answer.

        :param columns: for every input a flat list of JSON values, or an array where its column takes one.
        :param rows: 1 to the signature's max_batch; it determines the length of the lists.
        :raises RequestError: the signature refuses a value; the message names the input.
        :raises PredictionError: the graph failed, or its answer breaks the signature.
        """
        answer = self._row.run(columns) if rows == 1 and self._row else None
        if answer is None:
            answer = self._run(columns, rows)
        for name, array in answer.items():
            self.signature.outputs[name].check_answer(array, rows)
        return answer

    def _run(self, columns: Mapping[str, list[Any] | Array], rows: int) -> dict[str, Array]:
        inputs = self.signature.inputs
        feeds = {name: inputs[name].array(v).reshape(rows, *inputs[name].tail) for name, v in columns.items()}
        try:
            arrays = self._session.run(self._outputs, feeds)
        except (
            Exception
        ) as error:  # ONNX Runtime has no common base class; its signature accepts these values
            raise PredictionError(f"the model failed: {type(error).__name__}: {error!s:.300}") from error
        return dict(zip(self._outputs, arrays, strict=True))


class _Row:
    """Runs one row on tensors that are bound once, in half the time of passing new ones.

    The usual request has one row, and for a small model passing tensors takes most of the time.
    """

    def __init__(self, session: ort.InferenceSession, signature: ModelSignature) -> None:
        self._session = session
        self._binding = session.io_binding()
        self._lock = threading.Lock()
        self._inputs = [
            (name, column, np.zeros(1, column.dtype)) for name, column in signature.inputs.items()
        ]
        self._outputs = [(name, np.zeros((1, *c.tail), c.dtype)) for name, c in signature.outputs.items()]
        for name, _, array in self._inputs:  # on the CPU a tensor is the array itself, not a copy
            self._binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array))
        for name, array in self._outputs:
            self._binding.bind_ortvalue_output(name, ort.OrtValue.ortvalue_from_numpy(array))

    def run(self, columns: Mapping[str, list[Any] | Array]) -> dict[str, Array] | None:
        """Return the answer; None where the graph failed: a plain run then gives a better message."""
        with self._lock:
            for name, column, array in self._inputs:
                array[0] = column.value(columns[name][0])
            try:
                self._session.run_with_iobinding(self._binding)
            except Exception:  # ONNX Runtime has no common base class of its own
                return None
            return {name: array.copy() for name, array in self._outputs}


def _fixed(signature: ModelSignature) -> bool:
    """Whether every tensor of one row has a fixed size: plain columns without text."""
    inputs, outputs = signature.inputs.values(), signature.outputs.values()
    return all(not c.tail and c.graph_datatype != "BYTES" for c in inputs) and all(
        c.datatype != "BYTES" for c in outputs
    )


def _session(path: Path) -> ort.InferenceSession:
    if not path.is_file():
        raise ModelError(f"{path.name} is missing from {path.parent}")
    options = ort.SessionOptions()
    options.intra_op_num_threads = (
        1  # threads slow small models down: 1738 against 656 microseconds at batch 32
    )
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # errors come as exceptions
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
            raise ModelError(_other_type(f"{side} {name!r}", column, wanted=wanted, found=found[name].type))
        shape = found[name].shape
        if shape and len(shape) != 1 + len(column.tail):
            fixed = ", ".join(str(size) for size in [-1, *shape[1:]])
            raise ModelError(
                f"{side} {name!r}: the signature has {1 + len(column.tail)} dimensions, the graph {shape}: "
                f'write "shape": [{fixed}] into the signature'
            )


def _other_type(what: str, column: Column, *, wanted: str, found: str) -> str:
    coded = column.datatype == "BYTES" and column.graph_datatype != "BYTES"
    said = f"{column.datatype} with categories" if coded else column.datatype
    hint = (
        ": leave its categories out, and the graph gets the text"
        if coded and found == "tensor(string)"
        else ""
    )
    return f"{what}: the signature says {said}, which is {wanted}, the graph {found}{hint}"
