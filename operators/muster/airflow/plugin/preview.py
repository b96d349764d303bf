"""What is seen of a file of a version: schema and first rows of Parquet, CSV and JSON lines, and Markdown as a document."""

from __future__ import annotations

import csv
import json
from dataclasses import asdict
from html import escape
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
MISSING = (
    "the rows are not shown, because Airflow's environment has no DuckDB: "
    "`pip install 'airflow-provider-muster[page]'` there"
)
MARKDOWN_BYTES = 1 << 20
_DOCUMENT = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>
:root {{ color-scheme: light dark; }} @media (prefers-color-scheme: dark) {{ body {{ background: #14171b; color: #dde2e8; }} a {{ color: #7db2f0; }} }}
body {{ font: 15px/1.55 system-ui, sans-serif; max-width: 52rem; margin: 1.5rem auto; padding: 0 1rem; overflow-wrap: anywhere; }}
pre, code {{ font-family: ui-monospace, monospace; font-size: 0.93em; }} pre {{ overflow: auto; }} img {{ max-width: 100%; }}
table {{ border-collapse: collapse; }} th, td {{ border: 1px solid #8884; padding: 0.2rem 0.6rem; }}</style><body>{body}</body></html>"""


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
    columns = [asdict(each) for each in schema.columns]
    rows, own, note = _rows(path)
    if rows and len(own) != len(columns):  # a nested one is several in the file, and one in a row
        columns = own
    return {
        "columns": columns,
        "total": schema.rows,
        "rows": rows,
        "note": note,
    }


def _rows(path: Path) -> tuple[list[list[str]], list[dict[str, Any]], str]:
    """Return the first rows and their columns, or why there are none."""
    try:
        import duckdb
    except ImportError:
        return [], [], MISSING
    limits: dict[str, Any] = {"threads": "1", "memory_limit": "512MB", "temp_directory": ""}
    try:
        with path.open("rb") as file, duckdb.connect(config=limits) as asked:
            # By its number: a name may hold what DuckDB takes for a pattern.
            found = asked.execute(f"SELECT * FROM read_parquet('/proc/self/fd/{file.fileno()}') LIMIT {ROWS}")  # noqa: S608
            own = [
                {"name": as_shown(name), "type": str(kind).lower(), "nullable": True}
                for name, kind, *_ in found.description
            ]
            return [[_cell(each) for each in row] for row in found.fetchall()], own, ""
    except duckdb.Error as error:
        return [], [], f"the rows are not shown: {shortened(as_shown(str(error)), CELL)}"


def markdown(path: Path) -> str:
    """Return a file of Markdown as an HTML document. HTML within it is shown as the text that it is."""
    from markdown_it import MarkdownIt

    text = path.read_bytes()[:MARKDOWN_BYTES].decode(errors="replace")
    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(text)
    return _DOCUMENT.format(title=escape(path.name), body=body)


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
