"""Makes one table of a version's Parquet and CSV files, in a database of DuckDB on disk."""

from __future__ import annotations

import codecs
import gzip
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

from muster_validate.reasons import SuiteError, reason

TABLE = "data"
_ENDINGS = {"parquet": (".parquet",), "csv": (".csv", ".csv.gz")}
_AT_ONCE = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Table:
    """The table ``data``: the file of its database, a connection to it that stays open, its rows, and its columns with their types."""

    path: Path
    connection: duckdb.DuckDBPyConnection
    rows: int
    types: dict[str, str]


@contextmanager
def table_of(folders: list[Path], *, csv: Mapping[str, str], texts: Collection[str]) -> Iterator[Table]:
    """Make the table of all Parquet and CSV files below `folders`.

    Columns are matched by name; a column that a file lacks is null. Parquet is read where it lies. CSV is read once, to its end, so a
    column has the type that fits all of its values.

    :param csv: ``encoding``, ``delimiter`` and ``quote`` of CSV files, as far as they are known.
    :param texts: columns of CSV, in lower case, that stay texts, whatever they look like. :raises SuiteError: there is no file, or one cannot be read.
    """
    found = {kind: _files(folders, endings) for kind, endings in _ENDINGS.items()}
    if not any(found.values()):
        raise SuiteError(
            f"no Parquet or CSV file in {', '.join(map(str, folders)) or 'an empty list of versions'}: "
            f"expected names that end in {', '.join(ending for each in _ENDINGS.values() for ending in each)}"
        )
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "data.duckdb"
        with duckdb.connect(str(path)) as connection:
            try:
                if found["parquet"]:
                    files = [str(file) for file in found["parquet"]]
                    connection.read_parquet(files, union_by_name=True).create_view("parquet")
                if found["csv"]:
                    _read_csv(connection, found["csv"], csv, texts, Path(scratch))
                parts = " union all by name ".join(f"from {kind}" for kind, files in found.items() if files)
                connection.execute(f"create view {TABLE} as {parts}")
                table = connection.table(TABLE)
                ((rows,),) = table.count("*").fetchall()
                types = dict(zip(table.columns, map(str, table.types), strict=True))
            except (duckdb.Error, OSError) as error:
                raise SuiteError(f"the data cannot be read: {reason(error)}") from error
            yield Table(path=path, connection=connection, rows=rows, types=types)


def _files(folders: list[Path], endings: tuple[str, ...]) -> list[Path]:
    return [
        file
        for folder in folders
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.name.endswith(endings)
    ]


def _read_csv(
    connection: duckdb.DuckDBPyConnection,
    files: list[Path],
    csv: Mapping[str, str],
    texts: Collection[str],
    scratch: Path,
) -> None:
    """Read CSV into a table: several expectations read it again, and its types are known once only."""
    encoding = csv.get("encoding") or "utf-8-sig"
    plain = codecs.lookup(encoding).name in ("utf-8", "utf-8-sig")
    if not plain:
        (scratch / "csv").mkdir()
        files = [
            _in_utf_8(file, scratch / "csv" / f"{number}.csv", encoding) for number, file in enumerate(files)
        ]
    # The whole file says what type a column has: one of numbers may hold a text in its last row.
    known: dict[str, Any] = {"union_by_name": True, "sample_size": -1}
    known |= {
        word: csv[name] for name, word in (("delimiter", "delimiter"), ("quote", "quotechar")) if name in csv
    }
    names = [str(file) for file in files]
    try:
        columns = connection.read_csv(names, **known).columns
        kept = {name: "VARCHAR" for name in columns if name.casefold() in texts}
        connection.read_csv(names, **known, **({"dtype": kept} if kept else {})).create("csv")
    except duckdb.Error as error:
        if plain and (wrong := _not_utf_8(files)):
            raise SuiteError(wrong) from error
        raise
    if not plain:
        shutil.rmtree(scratch / "csv")


def _in_utf_8(file: Path, target: Path, encoding: str) -> Path:
    """Write a file anew in UTF-8, piece by piece. :raises SuiteError: it is not in the encoding."""
    with _opened(file) as read, target.open("w", encoding="utf-8", newline="") as write:
        text = codecs.getreader(encoding)(read)
        try:
            while piece := text.read(_AT_ONCE):
                write.write(piece)
        except UnicodeError as error:
            raise SuiteError(
                f"{file.name} is not in the encoding {encoding!r} of the task: {error!s:.200}"
            ) from None
    return target


def _not_utf_8(files: list[Path]) -> str:
    """Say which file is not in UTF-8; empty where all are."""
    for file in files:
        decoder, at = codecs.getincrementaldecoder("utf-8")(), 0
        with _opened(file) as read:
            while piece := read.read(_AT_ONCE):
                try:
                    decoder.decode(piece)
                except UnicodeDecodeError as error:
                    return (
                        f"{file.name} is not in UTF-8 (byte 0x{error.object[error.start]:02x} near {at + error.start:,}): give the task its "
                        "encoding, such as encoding='cp1252' or encoding='utf-16'"
                    )
                at += len(piece)
    return ""


def _opened(file: Path) -> Any:
    return gzip.open(file) if file.name.endswith(".gz") else file.open("rb")
