"""The predictor of a version in worker processes: the same checks as for ONNX, here and there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from muster_serving.column import Array
from muster_serving.process.layout import Layout
from muster_serving.process.setup import Setup
from muster_serving.process.workers import Told, Workers
from muster_serving.signature import SIGNATURE, Signature


class ProcessPredictor:
    """One loaded version in processes of its own."""

    def __init__(self, folder: Path, setup: Setup, *, revision: str, told: Told) -> None:
        """Read its signature. :raises ModelError: it is missing or broken."""
        self.folder = folder
        self.signature = Signature.load(folder / SIGNATURE)
        self._inputs = Layout(self.signature.inputs.values())
        self._outputs = Layout(self.signature.outputs.values())
        self._workers = Workers(
            folder, setup, revision=revision, most_rows=self.signature.max_batch, told=told
        )

    async def start(self) -> None:
        """Return when all workers have loaded the version. :raises ModelError: one cannot."""
        await self._workers.start()

    async def predict(self, columns: Mapping[str, list[Any] | Array], rows: int) -> dict[str, Array]:
        """Check the values of every input, and have the model answer them; its process has checked the answer.

        :param columns: for every input a flat list of JSON values, or an array where its column takes one.
        :raises RequestError: the signature refuses a value; the message names the input.
        :raises PredictionError: the model failed, or its answer breaks the signature.
        """
        data = self._inputs.pack_values(columns, rows)
        return self._outputs.unpack(await self._workers.ask(data, rows), rows)

    def close(self) -> None:
        """End the workers when they have answered."""
        self._workers.close()
