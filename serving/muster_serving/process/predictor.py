"""The predictor of a version in worker processes: the same checks as for ONNX, here and there."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

import numpy as np  # noqa: TID253 - the server cannot do without; nothing that Airflow parses imports it

from muster_serving.body import MAX_BODY_BYTES
from muster_serving.column import Array
from muster_serving.errors import PredictionError
from muster_serving.process.frames import ROWS
from muster_serving.process.layout import RecordLayout
from muster_serving.process.start import Setup
from muster_serving.process.workers import Told, WorkerPool
from muster_serving.signature import SIGNATURE, ModelSignature


class ProcessPredictor:
    """One loaded version in processes of its own.

    :ivar streams: whether it answers in :meth:`parts`.
    """

    def __init__(self, folder: Path, setup: Setup, *, revision: str, told: Told) -> None:
        """Read its signature. :raises ModelError: it is missing or broken."""
        self.folder = folder
        self.streams = setup.stream
        self.signature = ModelSignature.load(folder / SIGNATURE)
        self._inputs = RecordLayout(self.signature.inputs.values())
        self._outputs = RecordLayout(self.signature.outputs.values())
        self._workers = WorkerPool(
            folder, setup, revision=revision, most_rows=self.signature.max_batch, told=told
        )

    async def start(self) -> None:
        """Return when all workers have loaded the version. :raises ModelError: one cannot."""
        await self._workers.start()

    async def predict(self, columns: Mapping[str, list[Any] | Array], rows: int) -> dict[str, Array]:
        """Check the values of every input, and have the model answer them; its process has checked the answer.

        Parts are joined: the answer has the rows of all of them.

        :param columns: for every input a flat list of JSON values, or an array where its column takes one.
        :raises RequestError: the signature refuses a value; the message names the input.
        :raises PredictionError: the model failed, or its answer breaks the signature, or its parts are too many to join.
        """
        data = self._inputs.pack_values(columns, rows)
        if self.streams:
            return await self._joined(data, rows)
        return self._outputs.unpack(await self._workers.ask(data, rows), rows)

    async def parts(
        self, columns: Mapping[str, list[Any] | Array], rows: int
    ) -> AsyncGenerator[dict[str, Array], None]:
        """Yield the parts of an answer, each computed when it is asked for; close this where no more are wanted.

        :param columns: as of :meth:`predict`.
        :raises RequestError: as :meth:`predict`, before the first part; 408 where parts were asked for too slowly.
        :raises PredictionError: the model failed, or a part breaks the signature.
        """
        data = self._inputs.pack_values(columns, rows)
        async with aclosing(self._workers.stream(data, rows)) as parts:
            async for part in parts:
                yield self._read(part)

    async def _joined(self, data: bytes, rows: int) -> dict[str, Array]:
        found, size = [], 0
        async with aclosing(self._workers.stream(data, rows)) as parts:
            async for part in parts:
                size += len(part)
                if size > MAX_BODY_BYTES:
                    raise PredictionError(
                        f"the whole answer has more than {MAX_BODY_BYTES} bytes: ask for its parts, generate_stream"
                    )
                found.append(self._read(part))
        return {name: np.concatenate([one[name] for one in found]) for name in self.signature.outputs}

    def _read(self, part: bytes | memoryview) -> dict[str, Array]:
        return self._outputs.unpack(part[ROWS.size :], *ROWS.unpack_from(part))

    def close(self) -> None:
        """End the workers when they have answered."""
        self._workers.close()
