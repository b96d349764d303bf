"""Makes smoke requests of rows of Parquet and CSV files: a job of muster's DeployOperator, in the image ``serve``.

Each request is one row, as most users ask. A row that the model's signature refuses ends the job, which names file and row.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from muster_serving.column import Column
from muster_serving.errors import RequestError
from muster_serving.scoring import RowRange, ScoringError, files, split
from muster_serving.shard import blocks, in_json, plain
from muster_serving.signature import SIGNATURE, ModelSignature

FILE = "smoke.json"


def write(model: Path, rows: list[Path], smoke: Path, *, most: int) -> None:
    """Write ``smoke.json``: a list of requests, each with a name that tells file and row.

    It returns no metrics: a run shows those of its last stage, which are the model's.

    :param most: of Parquet files so many rows at even distances, of a CSV file the first ones.
    :raises ScoringError: there are no rows, a column is missing, or the signature refuses a value.
    """
    signature = ModelSignature.load(model / SIGNATURE)
    found = files(rows)
    requests = list(_requests(found, signature, most))
    if not requests:
        raise ScoringError(
            f"{', '.join(file.name for file in found):.200}: no rows, and a smoke test needs one"
        )
    text = json.dumps(requests, ensure_ascii=False, allow_nan=False)
    (smoke / FILE).write_text(text, encoding="utf-8")


def _requests(found: list[Path], signature: ModelSignature, most: int) -> Iterator[dict[str, Any]]:
    left, runs = most, [pieces[0] for pieces in split(found, most)]
    for piece in runs:
        for name, row in _rows(piece, signature, most=min(left, math.ceil(most / len(runs)))):
            left -= 1
            yield {"name": name, "inputs": {word: [value] for word, value in row.items()}}


def _rows(piece: RowRange, signature: ModelSignature, *, most: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the first rows of a piece, each with its name and its values by input."""
    names, left = list(signature.inputs), most
    if piece.end is not None:
        piece = RowRange(file=piece.file, begin=piece.begin, end=min(piece.end, piece.begin + most))
    for at, block in blocks(piece, names, signature):
        for number, row in enumerate(block.slice(0, left).to_pylist(), at):
            where = f"{Path(piece.file).name}, row {number}"
            for name, column in signature.inputs.items():
                value = (
                    row[name]
                    if column.tail
                    else plain(column, block.column(name).slice(number - at, 1)).to_pylist()[0]
                )
                row[name] = _checked(where, column, value)
            yield where, row
        left -= block.num_rows
        if left <= 0:
            return


def _checked(where: str, column: Column, value: Any) -> Any:
    """Return a value as JSON has it. :raises ScoringError: the signature refuses it."""
    try:
        column.array(_flat(value))
    except RequestError as error:
        raise ScoringError(f"{where}: {error}") from error
    return in_json(value)


def _flat(value: Any) -> list[Any]:
    return [each for part in value for each in _flat(part)] if isinstance(value, list) else [value]
