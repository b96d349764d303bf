"""Prints how many rows each month has, and the sum of their hashes, as JSON: ``python sums.py FOLDER``, in the image `etl`.

FOLDER has a folder for each month, ``2013-01`` or ``partition=2013-01``. Equal rows in another order, or in other files, have equal sums;
a column of another name or type has not.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import duckdb


def main(folder: Path) -> None:
    """Print ``{"2013-01": [rows, sum], …}``."""
    found = {path.name.removeprefix("partition="): _sums(path) for path in sorted(folder.iterdir())}
    print(json.dumps(found))


def _sums(month: Path) -> tuple[int, str]:
    rows = duckdb.read_parquet(f"{month}/*.parquet", hive_partitioning=False)
    columns = sorted(zip(rows.columns, map(str, rows.types), strict=True))
    names = ", ".join(f'"{name}"' for name, _ in columns)
    (found,) = duckdb.sql(f"SELECT count(*), sum(hash({names})) FROM rows").fetchall()
    return found[0], f"{columns} {found[1]}"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
