"""A model's signature: its inputs and outputs, read from ``signature.json`` beside the model.

Each request is checked against it, and so is the graph when the model is loaded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from muster_serving.column import Column, need
from muster_serving.errors import ModelError, RequestError

_FORMATS = (1, 2)
SIGNATURE = "signature.json"
_MAX_BATCH = 4096
NULLS = ".nulls"


@dataclass(frozen=True)
class ModelSignature:
    """The inputs and outputs of one model."""

    inputs: Mapping[str, Column]
    outputs: Mapping[str, Column]
    max_batch: int = _MAX_BATCH
    document: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """The JSON that it was read from."""

    @classmethod
    def load(cls, path: Path) -> ModelSignature:
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
    def parse(cls, document: Any, *, what: str = "signature") -> ModelSignature:
        """Read a signature from parsed JSON. :raises ModelError: it is not valid."""
        need(isinstance(document, dict), f"{what}: expected an object")
        unknown = sorted(set(document) - {"format", "inputs", "outputs", "max_batch"})
        need(not unknown, f"{what}: unknown key {', '.join(unknown)!r:.60}")
        found = document.get("format")
        need(
            type(found) is int and found in _FORMATS,
            f"{what}: format is {found!r:.20}, this server reads {' and '.join(map(str, _FORMATS))}",
        )
        max_batch = document.get("max_batch", _MAX_BATCH)
        need(
            type(max_batch) is int and max_batch > 0,
            f"{what}: max_batch is {max_batch!r:.40}, need 1 or more",
        )
        columns = {
            side: _columns(f"{what}: {side}", document.get(side), of=found, output=side == "outputs")
            for side in ("inputs", "outputs")
        }
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

    def outside(self, columns: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the inputs with a value that none of the training rows had, as far as the file records what they had.

        :param columns: by input a flat list of JSON values, or an array, as a request that was read has them.
        """
        return tuple([name for name, is_outside in self._recorded if is_outside(columns[name])])

    @cached_property
    def masks(self) -> Mapping[Any, Column]:
        """The tensors of BOOL that version 2 may have beside inputs: ``NAME.nulls`` says which values of NAME are null."""
        nullable = [column for column in self.inputs.values() if column.nullable]
        entries = ({"name": c.name + NULLS, "datatype": "BOOL", "shape": [-1, *c.tail]} for c in nullable)
        return {
            entry["name"]: Column.parse("mask", entry)
            for entry in entries
            if entry["name"] not in self.inputs
        }

    @cached_property
    def _recorded(self) -> list[tuple[str, Callable[[Any], bool]]]:
        """The inputs whose values may be outside; closed ones are refused there."""
        return [(n, c.is_outside) for n, c in self.inputs.items() if c.kind_outside]

    def check_nulls(self, what: str) -> None:
        """Raise ModelError where an input is nullable whose null such a model cannot be given."""
        for name, column in self.inputs.items():
            if column.nullable and column.null in (None, -1) and column.fallback is None:
                raise ModelError(
                    f"input {name!r} is nullable, and {what} has no null of {column.datatype}: fill the missing values of the "
                    f"training rows with a category of their own and name it, muster.signature(…, fallback={{{name!r}: …}}), or have "
                    "the model take FP64 or FP32, where null is NaN"
                )

    def check_categories(self, what: str, *, encoded: Collection[str] = ()) -> None:
        """Raise ModelError where an input was a categorical column of numbers: a model may have had these, or their places.

        :param encoded: the inputs that are known to have been places.
        """
        for name, column in self.inputs.items():
            if column.frame.get("dtype") == "category" and column.datatype != "BYTES" and name not in encoded:
                raise ModelError(
                    f"input {name!r} is a categorical column of numbers, and {what} had these or their places: describe what it had, "
                    f"inputs=frame.astype({{{name!r}: {column.datatype.lower().replace('fp', 'float')!r}}}) where it had the numbers"
                )

    def with_places(self) -> ModelSignature:
        """Return it as for a graph that takes a text's place in its categories."""
        inputs = {name: column.closed() for name, column in self.inputs.items()}
        return replace(self, inputs=inputs)

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


def _columns(where: str, entries: Any, *, of: int, output: bool) -> dict[str, Column]:
    need(isinstance(entries, list) and bool(entries), f"{where}: expected a list of one or more tensors")
    columns = [Column.parse(f"{where}[{i}]", entry, of=of, output=output) for i, entry in enumerate(entries)]
    names = [column.name for column in columns]
    twice = sorted({name for name in names if names.count(name) > 1})
    need(not twice, f"{where}: {', '.join(twice)!r:.60} is there twice")
    return {column.name: column for column in columns}
