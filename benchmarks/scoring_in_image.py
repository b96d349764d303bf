"""Makes the rows of :mod:`benchmarks.scoring`, and asks a model server for some of them; runs in the image ``serve``.

``scoring_in_image.py rows MODEL FOLDER ROWS`` writes Parquet files for the model's signature; numbers are eighths, so that a row takes 8 bytes.
``scoring_in_image.py sample MODEL ROWS PREDICTIONS PORT NUMBER`` asks the server at PORT for NUMBER rows, and prints as JSON how many of its answers equal the predictions.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np  # noqa: TID253 - it runs in the image
import pyarrow as pa
import pyarrow.parquet as pq

FILE_ROWS, GROUP_ROWS = 5_000_000, 500_000
RUN = 100  # of rows that are asked for in one place
SIZES = (1, 9, 90)  # of requests, in rows
NAME = "flights"  # benchmarks.serving_site calls the deployment so


def write_rows(signature: dict[str, Any], folder: Path, rows: int) -> None:
    """Write files of 5 million rows and less, one group of rows after the other."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, begin in enumerate(range(0, rows, FILE_ROWS)):
        made = np.random.default_rng([3, number])
        writer = None
        for at in range(begin, min(begin + FILE_ROWS, rows), GROUP_ROWS):
            table = group_of(signature, made, min(GROUP_ROWS, rows - at))
            writer = writer or pq.ParquetWriter(
                folder / f"rows-{number:05}.parquet", table.schema, compression="zstd"
            )
            writer.write_table(table)
        assert writer is not None
        writer.close()


def group_of(signature: dict[str, Any], made: np.random.Generator, rows: int) -> pa.Table:
    """Return rows by chance that the signature allows."""
    return pa.table(
        {
            column["name"]: made.integers(column["min"], column["max"] + 1, rows)
            if column["datatype"] == "INT64"
            else (np.round(made.normal(0, 1, rows) * 8) / 8).astype(np.float32)
            for column in signature["inputs"]
        }
    )


def rows_at(folder: Path, begin: int, end: int) -> pa.Table:
    """Return the rows from `begin` to before `end` of a folder's files, in the order of their names."""
    found, at = [], 0
    for path in sorted(folder.glob("*.parquet")):
        file = pq.ParquetFile(path)
        for group in range(file.num_row_groups):
            size = file.metadata.row_group(group).num_rows
            first, last = max(begin, at), min(end, at + size)
            if first < last:
                found.append(file.read_row_group(group).slice(first - at, last - first))
            at += size
    return pa.concat_tables(found)


def sample(
    signature: dict[str, Any], rows: Path, predictions: Path, port: int, number: int
) -> dict[str, int]:
    """Ask for rows in evenly spread places; return how many predictions there are, were asked for, and are equal."""
    from tests.serving.try_scoring import asked_all

    whole = sum(pq.read_metadata(path).num_rows for path in predictions.glob("*.parquet"))
    sampled = equal = 0
    for place in range(number // RUN):
        begin = (whole - RUN) * place // max(number // RUN - 1, 1)
        asked = asked_all(port, rows_at(rows, begin, begin + RUN), signature, NAME, SIZES)
        held = rows_at(predictions, begin, begin + RUN)
        same = [
            np.array(values, held[name].type.to_pandas_dtype()) == held[name].to_numpy()
            for name, values in asked.items()
        ]
        sampled += RUN
        equal += int(np.logical_and.reduce(same).sum())
    return {"rows": whole, "sampled": sampled, "equal": equal}


def main() -> None:
    what, model, *rest = sys.argv[1:]
    signature = json.loads((Path(model) / "signature.json").read_text())
    if what == "rows":
        write_rows(signature, Path(rest[0]), int(rest[1]))
    else:
        rows, predictions, port, number = rest
        print(json.dumps(sample(signature, Path(rows), Path(predictions), int(port), int(number))))


if __name__ == "__main__":
    main()
