"""A model's signature: its inputs and outputs, read from ``signature.json`` beside the model.

Each request is checked against it, and so is the graph when the model is loaded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from muster_serving.column import Column, need
from muster_serving.errors import ModelError, RequestError

FORMAT = 1
SIGNATURE = "signature.json"
MAX_BATCH = 4096


@dataclass(frozen=True)
class Signature:
    """The inputs and outputs of one model."""

    inputs: Mapping[str, Column]
    outputs: Mapping[str, Column]
    max_batch: int = MAX_BATCH
    document: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """The JSON that it was read from."""

    @classmethod
    def load(cls, path: Path) -> Signature:
        """Read ``signature.json``.

        :raises ModelError: it is missing, not JSON, or not valid.
        """
        try:
            document = json.loads(path.read_bytes())
        except FileNotFoundError as error:
            raise ModelError(
                f"{path.name} is missing: write it beside the model when it is exported"
            ) from error
        except (OSError, ValueError, RecursionError) as error:
            raise ModelError(f"{path.name} cannot be read: {error}") from error
        return cls.parse(document, what=path.name)

    @classmethod
    def parse(cls, document: Any, *, what: str = "signature") -> Signature:
        """Read a signature from parsed JSON. :raises ModelError: it is not valid."""
        need(isinstance(document, dict), f"{what}: expected an object")
        unknown = sorted(set(document) - {"format", "inputs", "outputs", "max_batch"})
        need(not unknown, f"{what}: unknown key {', '.join(unknown)!r:.60}")
        need(
            document.get("format") == FORMAT,
            f"{what}: format is {document.get('format')!r:.20}, this server reads {FORMAT}",
        )
        max_batch = document.get("max_batch", MAX_BATCH)
        need(
            type(max_batch) is int and max_batch > 0,
            f"{what}: max_batch is {max_batch!r:.40}, need 1 or more",
        )
        columns = {side: _columns(f"{what}: {side}", document.get(side)) for side in ("inputs", "outputs")}
        for name, column in columns["outputs"].items():
            need(column.codes is None, f"{what}: output {name!r} has categories; only inputs may")
        return cls(
            inputs=columns["inputs"], outputs=columns["outputs"], max_batch=max_batch, document=document
        )

    def metadata(self) -> dict[str, Any]:
        """Return inputs and outputs in the form of the protocol's model metadata."""
        return {
            "inputs": [column.metadata() for column in self.inputs.values()],
            "outputs": [column.metadata() for column in self.outputs.values()],
        }

    def holds_unseen(self, columns: Mapping[str, Any]) -> bool:
        """Whether a fallback stands in for a value of a request.

        :param columns: by input a flat list of JSON values, as a request that was read has them.
        """
        return any(not codes.keys() >= set(columns[name]) for name, codes in self._fallbacks)

    @cached_property
    def _fallbacks(self) -> list[tuple[str, Mapping[Any, int]]]:
        """The inputs for which a fallback stands in, with their categories: most models have none."""
        return [
            (n, c.codes) for n, c in self.inputs.items() if c.codes is not None and c.fallback is not None
        ]

    def check_names(self, names: Sequence[str]) -> None:
        """Raise RequestError unless `names` are exactly the inputs."""
        for name in names:
            if name not in self.inputs:
                raise RequestError(
                    f"input {name!r:.80} is unknown; this model takes {', '.join(self.inputs)}"
                )
        missing = [name for name in self.inputs if name not in names]
        if missing:
            raise RequestError(f"input {missing[0]!r} is missing; this model takes {', '.join(self.inputs)}")

    def check_rows(self, rows: int) -> None:
        """Raise RequestError where a batch is empty or too long."""
        if not 0 < rows <= self.max_batch:
            raise RequestError(f"found {rows} rows, expected 1 to {self.max_batch} in one request")


def _columns(where: str, entries: Any) -> dict[str, Column]:
    need(isinstance(entries, list) and bool(entries), f"{where}: expected a list of one or more tensors")
    columns = [Column.parse(f"{where}[{i}]", entry) for i, entry in enumerate(entries)]
    names = [column.name for column in columns]
    twice = sorted({name for name in names if names.count(name) > 1})
    need(not twice, f"{where}: {', '.join(twice)!r:.60} is there twice")
    return {column.name: column for column in columns}
