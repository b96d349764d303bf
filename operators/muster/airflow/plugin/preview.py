"""The first rows of a file of a version, and its schema: Parquet, CSV and JSON lines."""

from __future__ import annotations

import csv
import json
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

from muster.core.errors import MusterError, SpecError
from muster.core.text import as_shown, shortened
from muster.volumes.parquet import read_schema

ROWS = 20
CELL = 200
LINE_BYTES = 1 << 20
SEPARATORS = {".csv": ",", ".tsv": "\t"}
TABLES = (".parquet", *SEPARATORS, ".jsonl")
MISSING = "the rows are not shown, because Airflow's environment has no pyarrow: `pip install pyarrow` there"


def preview(path: Path) -> dict[str, Any]:
    """Return the columns of a table, the number of its rows where the file says it, and the first 20 rows.

    :raises SpecError: it is no table that can be shown. :raises Corrupt: it cannot be read.
    """
    kind = path.suffix.lower()
    if kind == ".parquet":
        return _parquet(path)
    if kind in SEPARATORS:
        return _separated(path, SEPARATORS[kind])
    if kind == ".jsonl":
        return _json_lines(path)
    raise SpecError(f"{path.name}: rows are shown of {', '.join(TABLES)}")


def _parquet(path: Path) -> dict[str, Any]:
    schema = read_schema(path)
    rows, note = _rows(path, [column.name for column in schema.columns])
    return {
        "columns": [asdict(each) for each in schema.columns],
        "total": schema.rows,
        "rows": rows,
        "note": note,
    }


def _rows(path: Path, names: list[str]) -> tuple[list[list[str]], str]:
    """Return the first rows, or why there are none."""
    try:
        from pyarrow.parquet import ParquetFile  # type: ignore[import-not-found]  # where it is installed
    except ImportError:
        return [], MISSING
    top = list(dict.fromkeys(name.partition(".")[0] for name in names))
    with ParquetFile(path) as file:
        batch = next(file.iter_batches(batch_size=ROWS), None)
    found = batch.to_pylist() if batch is not None else []
    if top != names:
        return [], "the rows are not shown, because columns are nested"
    return [[_cell(row[name]) for name in top] for row in found], ""


def _separated(path: Path, separator: str) -> dict[str, Any]:
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        lines = (line for line in iter(lambda: file.readline(LINE_BYTES), ""))
        found = list(islice(csv.reader(lines, delimiter=separator), ROWS + 1))
    head, rows = (found[0], found[1:]) if found else ([], [])
    columns = [{"name": as_shown(name), "type": "", "nullable": False} for name in head]
    return {
        "columns": columns,
        "total": None,
        "rows": [[_cell(each) for each in row] for row in rows],
        "note": "",
    }


def _json_lines(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        lines = list(islice((line for line in iter(lambda: file.readline(LINE_BYTES), b"")), ROWS))
    try:
        found = [json.loads(line) for line in lines if line.strip()]
    except ValueError as error:
        raise MusterError(f"{path.name} holds a line that is no JSON: {error}") from error
    rows = [row if isinstance(row, dict) else {"value": row} for row in found]
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = [{"name": as_shown(name), "type": "", "nullable": True} for name in names]
    cells = [[_cell(row.get(name)) for name in names] for row in rows]
    return {"columns": columns, "total": None, "rows": cells, "note": ""}


def _cell(value: Any) -> str:
    text = "" if value is None else value if isinstance(value, str) else str(value)
    return shortened(as_shown(text), CELL)
