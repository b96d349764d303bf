"""Finds the rows of one prediction: ``python -m muster_serving.find ID PATH …`` prints them as a list of JSON objects.

A path is a folder of Parquet files that :mod:`muster_serving.collect` wrote, or a spool file.
"""

from __future__ import annotations

import json
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from muster_serving import spool
from muster_serving.errors import ServingError
from muster_serving.signature import ModelSignature


def find(identity: str, paths: list[Path]) -> list[dict[str, Any]]:
    """Return the rows of a prediction, in their order; none where it is not there.

    :raises ServingError: a file cannot be read.
    """
    for path in paths:
        rows = _in_folder(identity, path) if path.is_dir() else _in_spool(identity, path)
        if rows:
            return rows
    return []


def _in_folder(identity: str, folder: Path) -> list[dict[str, Any]]:
    for part in sorted(folder.glob("*.parquet")):
        found = pq.read_table(part, filters=[("id", "==", identity)], use_threads=False)
        if found.num_rows:
            return sorted(found.to_pylist(), key=lambda row: int(row["row"]))
    return []


def _in_spool(identity: str, file: Path) -> list[dict[str, Any]]:
    from muster_serving.collect import rows_of

    head = spool.read_head(file)
    for frame, _ in spool.frames(file):
        if frame.identity == identity:
            return rows_of(frame, head, ModelSignature.parse(head["signature"]))
    return []


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"{value!r:.60} is no JSON")


def main() -> None:
    """Print the rows; exit with the reason where a file cannot be read."""
    identity, *paths = sys.argv[1:]
    try:
        rows = find(identity, [Path(path) for path in paths])
    except (ServingError, OSError, pa.ArrowException) as error:
        sys.exit(f"{type(error).__name__}: {error}")
    print(json.dumps(rows, default=_plain))  # noqa: T201 its answer


if __name__ == "__main__":
    main()
