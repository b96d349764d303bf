"""Runs in the image etl: whether two folders of months have the same rows in the same order, of the same types."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pyarrow.parquet as pq


def main(ours: Path, theirs: Path) -> dict[str, object]:
    months = sorted(path.name for path in ours.iterdir())
    found = {
        "months": months,
        "others": sorted(path.name for path in theirs.iterdir()),
        "rows": 0,
        "differ": [],
    }
    for month in months:
        one, other = (pq.read_table(folder / month, partitioning=None) for folder in (ours, theirs))
        found["rows"] += one.num_rows
        found["differ"] += [
            f"{month} {name}"
            for name in one.column_names + [n for n in other.column_names if n not in one.column_names]
            if name not in other.column_names
            or name not in one.column_names
            or not one[name].equals(other[name])
        ]
    return found


print(json.dumps(main(Path(sys.argv[1]), Path(sys.argv[2]))))
