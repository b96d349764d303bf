"""Runs in the image ingest: makes versions of small Parquet files, joins them, and tells what is in them; each call is one JSON line.

``make FOLDER {"files": {path: [rows]}, "types": {path: {column: type}}, "first": {…}}``, ``compact BEFORE TARGET KIB``, ``rows FOLDER``.
"""

from __future__ import annotations

import hashlib
import json
import resource
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from muster_ingest.compacting import Compacting
from muster_ingest.listing import CARRIED, LISTING, line


def make(folder: Path, said: str) -> dict[str, Any]:
    """Write files of rows, and a listing if there is a first line of one."""
    told = json.loads(said)
    lines = []
    for path, rows in told["files"].items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        types = {name: getattr(pa, kind)() for name, kind in told.get("types", {}).get(path, {}).items()}
        table = pa.Table.from_pylist(rows)
        for name, kind in types.items():
            table = table.set_column(table.schema.get_field_index(name), name, table[name].cast(kind))
        pq.write_table(table, file)
        lines.append(line(path, file.stat().st_size, hashlib.sha256(file.read_bytes()).hexdigest()))
    if "first" in told:
        (folder / LISTING).write_text(json.dumps(told["first"], sort_keys=True) + "\n" + "".join(lines))
    return {}


def many(folder: Path, files: str, rows: str) -> dict[str, Any]:
    """Write many files of a stream, of two partitions, of rows that do not compress."""
    import os

    folder.mkdir(parents=True, exist_ok=True)
    count, each = int(files), int(rows)
    for number in range(count):
        offsets = list(range(number * each, (number + 1) * each))
        table = pa.table(
            {
                "text": [os.urandom(500).hex() for _ in offsets],
                "_partition": pa.array([offset % 2 for offset in offsets], pa.int32()),
                "_offset": pa.array(offsets, pa.int64()),
            }
        )
        pq.write_table(table, folder / f"part-{number:05}.parquet")
    return {}


def compact(before: Path, target: str, kib: str) -> dict[str, Any]:
    """Join, and tell the figures, the memory that it took in MiB, and what stays."""
    start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    Path(target).mkdir(parents=True, exist_ok=True)
    told = Compacting(before, Path(target), large_bytes=int(kib) << 10).run()
    carried = Path(target) / CARRIED
    return {
        **told,
        "memory_mib": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start) / 1024,
        "carried": carried.read_text().split("\n")[:-1] if carried.exists() else None,
        "here": sorted(str(each.relative_to(target)) for each in Path(target).rglob("*") if each.is_file()),
    }


def rows(folder: Path) -> Any:
    """Read all files, in the order of the listing or by name."""
    listing = folder / LISTING
    paths = [json.loads(each)[0] for each in listing.read_text().splitlines()[1:]] if listing.exists() else []
    found = paths or sorted(str(each.relative_to(folder)) for each in folder.rglob("*.parquet"))
    return {path: pq.read_table(folder / path).to_pylist() for path in found}


def main(what: str, folder: str, *rest: str) -> None:
    """Do it, and say how it ended."""
    try:
        told = {"make": make, "many": many, "compact": compact, "rows": rows}[what](Path(folder), *rest)
    except Exception as error:  # whatever it is, the test looks at it
        told = {"error": type(error).__name__, "message": str(error)}
    print(json.dumps(told, default=str))


main(*sys.argv[1:])
