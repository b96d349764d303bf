"""What is seen of a file of a version: schema and first rows of Parquet, CSV and JSON lines, and Markdown as a document.

Any job may have written the file, and Airflow's API server reads it: what a file can take of memory and time is bounded
before it is taken.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from html import escape
from itertools import islice
from pathlib import Path
from typing import IO, Any, AnyStr

from muster.core.errors import Corrupt, SpecError
from muster.core.shipped import install
from muster.core.text import as_shown, shortened
from muster.volumes.parquet import MOST_COLUMNS, NAME, read_schema

ROWS = 20
CELL = 200
"""The characters of a cell that are shown."""
ANSWER = 1 << 20
"""The characters of all cells together: of very many columns each cell is shorter."""
LINE_BYTES = 1 << 20
READ_BYTES = 2 << 20
"""What is read of a file of text: its objects take up to thirty times as much memory."""
_SEPARATORS = {".csv": ",", ".tsv": "\t"}
TABLES = (".parquet", *_SEPARATORS, ".jsonl")
MISSING = f"the rows are not shown, because Airflow's environment has no DuckDB: `{install('page')}` there"
_MARKDOWN_BYTES = 128 << 10
"""What is read of a document: a megabyte of brackets takes half a minute."""
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
    if kind in _SEPARATORS:
        return _separated(path, _SEPARATORS[kind])
    if kind == ".jsonl":
        return _json_lines(path)
    raise SpecError(f"{path.name}: rows are shown of {', '.join(TABLES)}")


def _parquet(path: Path) -> dict[str, Any]:
    schema = read_schema(path)
    columns = [asdict(each) for each in schema.columns]
    cells: list[tuple[Any, ...]] = []
    note = ""
    if schema.in_all <= MOST_COLUMNS:
        cells, own, note = _rows(path)
        if cells and len(own) != len(columns):  # a nested one is several in the file, and one in a row
            columns = own
    return _table(columns, cells, in_all=schema.in_all, note=note) | {"total": schema.rows}


def _rows(path: Path) -> tuple[list[tuple[Any, ...]], list[dict[str, Any]], str]:
    """Return the first rows and their columns, or why there are none."""
    try:
        import duckdb
    except ImportError:
        return [], [], MISSING
    limits: dict[str, Any] = {"threads": "1", "memory_limit": "512MB", "temp_directory": ""}
    try:
        with path.open("rb") as file, duckdb.connect(config=limits) as asked:
            # By its number: a name may hold what DuckDB takes for a pattern.
            table = f"FROM read_parquet('/proc/self/fd/{file.fileno()}') LIMIT {ROWS}"
            kinds = asked.execute(f"SELECT * {table}").description
            own = [_column(name, shortened(str(kind).lower(), CELL)) for name, kind, *_ in kinds]
            # Cut by DuckDB, which has a limit: a value of a gigabyte in every row takes a kilobyte of the file.
            cut = f"SELECT left(COLUMNS(*)::VARCHAR, {CELL + 1}) {table}"
            return asked.execute(cut).fetchall(), own, ""
    except duckdb.Error as error:
        return [], [], f"the rows are not shown: {shortened(as_shown(str(error)), CELL)}"


def markdown(path: Path) -> str:
    """Return a file of Markdown as an HTML document. HTML within it is shown as the text that it is."""
    from markdown_it import MarkdownIt

    text = path.read_bytes()[:_MARKDOWN_BYTES].decode(errors="replace")
    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(text)
    return _DOCUMENT.format(title=escape(path.name), body=body)


def _separated(path: Path, separator: str) -> dict[str, Any]:
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        # The limit of a field is the whole process's: it is not ours to raise.
        found, note = _first(csv.reader(_lines(file), delimiter=separator), ROWS + 1, csv.Error)
    names, rows = (found[0], found[1:]) if found else ([], [])
    return _table([_column(name) for name in names[:MOST_COLUMNS]], rows, in_all=len(names), note=note)


def _json_lines(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        lines = (json.loads(line) for line in _lines(file) if line.strip())
        found, note = _first(lines, ROWS, (ValueError, RecursionError))
    if note and not found:
        raise Corrupt(f"{path.name} is shown as lines of JSON, and {note}")
    rows = [row if isinstance(row, dict) else {"value": row} for row in found]
    names = list(dict.fromkeys(name for row in rows for name in row))
    shown = names[:MOST_COLUMNS]
    cells = [[row.get(name) for name in shown] for row in rows]
    return _table([_column(name, nullable=True) for name in shown], cells, in_all=len(names), note=note)


def _lines(file: IO[AnyStr]) -> Iterator[AnyStr]:
    """Yield the first lines of a file; what is too long is cut."""
    left = READ_BYTES
    while line := file.readline(min(LINE_BYTES, left)):
        left -= len(line)
        yield line


def _first(
    rows: Iterator[Any], most: int, broken: type[Exception] | tuple[type[Exception], ...]
) -> tuple[list[Any], str]:
    """Return the first rows that can be read, and why the next one cannot."""
    found: list[Any] = []
    try:
        for row in islice(rows, most):
            found.append(row)  # noqa: PERF402 - what was read before an error is shown
    except broken as error:
        why = shortened(as_shown(str(error)), CELL)
        return (
            found,
            f"row {len(found) + 1} cannot be read: {why} (a row is read up to {LINE_BYTES >> 20} MiB)",
        )
    return found, ""


def _column(name: str, kind: str = "", *, nullable: bool = False) -> dict[str, Any]:
    return {"name": shortened(as_shown(name[: 4 * NAME]), NAME), "type": kind, "nullable": nullable}


def _table(
    columns: list[dict[str, Any]], rows: Sequence[Sequence[Any]], *, in_all: int, note: str
) -> dict[str, Any]:
    if in_all > len(columns) == MOST_COLUMNS:
        note = f"{in_all:,} columns, of which the first {MOST_COLUMNS:,} are shown; {note}".removesuffix("; ")
    shown = [row[:MOST_COLUMNS] for row in rows]
    width = min(CELL, ANSWER // max(1, sum(map(len, shown))))
    cells = [[_cell(each, width) for each in row] for row in shown]
    return {"columns": columns, "total": None, "rows": cells, "note": note}


def _cell(value: Any, width: int) -> str:
    text = "" if value is None else value if isinstance(value, str) else str(value)
    return shortened(as_shown(text), width)
