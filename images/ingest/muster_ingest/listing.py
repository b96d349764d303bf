"""What the source holds now, and what is there of it already: two tables in a file, so that memory does not grow with them.

In the version it is ``.muster-ingest.jsonl``: a line with the source, then one for each file with its path, size and identity. A folder of
checkpoints holds the same of what was fetched so far, written as it comes.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from muster_ingest.errors import IngestError

LISTING = ".muster-ingest.jsonl"
JOURNAL = ".muster-ingest.part"
FRESH = ".muster-ingest.new"
CARRIED = ".muster-carried"
PARTS = ".muster-parts"
OWN = frozenset({LISTING, JOURNAL, FRESH, CARRIED, PARTS})
FORMAT = 1
STREAM = "stream"
"""The key of a listing's first line that says how far a version of a topic goes."""
_BATCH = 5_000
_CACHE_KIB = 32 << 10
_LONGEST_PATH, _LONGEST_NAME = 2_000, 240

_TABLES = """
create table now (path text primary key, key text, size integer, identity text) without rowid;
create table claimed (path text primary key, size integer, identity text) without rowid;
create table asked (path text primary key) without rowid;
create table had (path text primary key, size integer, identity text, here integer) without rowid;
"""

_DIFFERS = """
from now left join had on had.path = now.path
where (had.path is null or (now.size >= 0 and had.size != now.size) or had.identity != now.identity or (now.identity = '' and not had.here))
"""


class Listing:
    """The two tables of one ingest."""

    def __init__(self, file: Path) -> None:
        self._base = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
        self._base.execute("pragma journal_mode=off")
        self._base.execute("pragma synchronous=off")
        self._base.execute(f"pragma cache_size=-{_CACHE_KIB}")
        self._base.executescript(_TABLES)

    def close(self) -> None:
        """Close the file."""
        self._base.close()

    def had(self, rows: Iterable[tuple[str, int, str]], *, here: bool) -> None:
        """Note files that are there: in the last version, or `here`, fetched by an attempt of this job."""
        self._insert("insert or replace into had values (?, ?, ?, ?)", ((*row, int(here)) for row in rows))

    def claim(self, rows: Iterable[tuple[str, int, str]]) -> None:
        """Note what an attempt before this one says that it fetched."""
        self._insert("insert or replace into claimed values (?, ?, ?)", rows)

    def claimed(self, path: str) -> tuple[int, str] | None:
        """Return the size and identity of what it fetched, if it says so."""
        row = self._base.execute("select size, identity from claimed where path = ?", (path,)).fetchone()
        return None if row is None else (int(row[0]), str(row[1]))

    def list(self, objects: Iterable[tuple[str, str, int, str]], source: str) -> int:
        """Take the source's objects as they are now; return how many were empty names of folders, which are left out.

        :raises IngestError: a name is no path, two are one, or a file would be a folder, too.
        """
        self._base.execute("delete from now")
        left_out = 0

        def checked() -> Iterator[tuple[str, str, int, str]]:
            nonlocal left_out
            for key, path, size, identity in objects:
                if size == 0 and (path.endswith("/") or not path):
                    left_out += 1  # what consoles make to show a folder
                    continue
                _check(path, key, source)
                yield path, key, size, identity

        try:
            self._insert("insert into now values (?, ?, ?, ?)", checked())
        except sqlite3.IntegrityError:
            raise IngestError(f"{source} holds two objects with one path: rename one of them") from None
        inside = self._base.execute(
            "select a.path, (select min(b.path) from now b where b.path > a.path || '/' and b.path < a.path || '0') as below "
            "from now a where below is not null limit 1"
        ).fetchone()
        if inside is not None:
            raise IngestError(
                f"{source} holds {inside[0]!r:.200} and {inside[1]!r:.200}: no folder holds a file and a folder of one name; rename "
                "one of them, or ingest a part of the source"
            )
        return left_out

    def missing(self) -> tuple[int, int]:
        """Return how many objects are not there as they are now, and their bytes as far as they are known."""
        row = self._base.execute(f"select count(*), coalesce(sum(max(now.size, 0)), 0) {_DIFFERS}").fetchone()
        return int(row[0]), int(row[1])

    def missing_after(self, path: str) -> list[tuple[str, str, int, str]]:
        """Return path, key, size and identity of the next of them behind a path, some thousand at most."""
        return self._base.execute(
            f"select now.path, now.key, now.size, now.identity {_DIFFERS} and now.path > ? order by now.path limit ?",
            (path, _BATCH),
        ).fetchall()

    def ask(self, paths: Iterable[str]) -> None:
        """Note what is fetched."""
        self._insert("insert or ignore into asked values (?)", ((path,) for path in paths))

    def refused(self) -> tuple[str, int] | None:
        """Return path and size of an object that is still missing although it was asked for; None if there is none."""
        row = self._base.execute(
            f"select now.path, now.size {_DIFFERS} and now.path in (select path from asked) limit 1"  # noqa: S608 - nothing of it is data
        ).fetchone()
        return None if row is None else (str(row[0]), int(row[1]))

    def changed(self) -> str:
        """Return a path that is there, and otherwise than the source has it now; empty if there is none."""
        row = self._base.execute(f"select now.path {_DIFFERS} and had.path is not null limit 1").fetchone()
        return str(row[0]) if row else ""

    def gone(self) -> list[tuple[str, int]]:
        """Forget what the source holds no more; return the paths, and whether each was fetched here."""
        rows = self._base.execute(
            "select path, here from had where path not in (select path from now)"
        ).fetchall()
        self._base.execute("delete from had where path not in (select path from now)")
        return rows

    def kept(self, *, here: bool) -> Iterator[str]:
        """Yield the paths that are in the last version, or were fetched here, in order."""
        read = self._base.execute("select path from had where here = ? order by path", (int(here),))
        while rows := read.fetchmany(_BATCH):
            yield from (path for (path,) in rows)

    def count(self, *, here: bool | None = None) -> tuple[int, int]:
        """Return how many files are there, and their bytes; of those fetched here, or of the last version's alone."""
        row = self._base.execute(
            "select count(*), coalesce(sum(size), 0) from had where here = coalesce(?, here)",
            (None if here is None else int(here),),
        ).fetchone()
        return int(row[0]), int(row[1])

    def rows(self) -> Iterator[tuple[str, int, str]]:
        """Yield all files of the new version, in order."""
        read = self._base.execute("select path, size, identity from had order by path")
        while rows := read.fetchmany(_BATCH):
            yield from rows

    def note(self, path: str, size: int, identity: str) -> None:
        """Note one file that was fetched here."""
        self._base.execute("insert or replace into had values (?, ?, ?, 1)", (path, size, identity))

    def _insert(self, statement: str, rows: Iterable[tuple[Any, ...]]) -> None:
        self._base.execute("begin")
        try:
            self._base.executemany(statement, rows)
        finally:
            self._base.execute("commit")


def read(path: Path, source: Mapping[str, Any]) -> Iterator[tuple[str, int, str]]:
    """Yield the files that a listing names; none if there is none, or it is that of another source.

    A last line that a kill has torn is left out.
    """
    if not path.is_file() or path.is_symlink():
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        if head(file.readline()).get("source") != dict(source):
            return
        for line in file:
            try:
                name, size, identity = json.loads(line)
            except ValueError:
                return
            yield str(name), int(size), str(identity)


def empty(target: Path) -> None:
    """Delete what an attempt before has left, whatever its source was: all is read again."""
    for path in target.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def head(line: str) -> dict[str, Any]:
    """Return what a listing's first line says; empty if it is none that this program can read."""
    try:
        said = json.loads(line)
    except ValueError:
        return {}
    return said if isinstance(said, dict) and said.get("format") == FORMAT else {}


def first_line(source: Mapping[str, Any], **more: Any) -> str:
    """Return the first line of a listing."""
    return json.dumps({"format": FORMAT, "source": dict(source), **more}, sort_keys=True) + "\n"


def line(path: str, size: int, identity: str) -> str:
    """Return the line of one file."""
    return json.dumps([path, size, identity]) + "\n"


def next_number(files: Iterable[tuple[str, int, str]], folder: str = "") -> int:
    """Return the number of the next ``part-`` file in a folder: files that were joined leave gaps."""
    found = [
        int(stem)
        for path, _, _ in files
        if path.startswith(f"{folder}part-")
        and (stem := path.removeprefix(f"{folder}part-").removesuffix(".parquet")).isdecimal()
    ]
    return max(found, default=-1) + 1


def _check(path: str, key: str, source: str) -> None:
    """Refuse a name that is no path below a folder."""
    if path.endswith("/"):
        raise IngestError(
            f"{source}: object {key!r:.300} ends with a slash and has content: no file has such a name; rename it"
        )
    segments = path.split("/")
    if any(each in ("", ".", "..") for each in segments):
        raise IngestError(
            f"{source}: object {key!r:.300} is no path below a folder (//, . or ..): rename it, or ingest a part of the source"
        )
    if len(path.encode(errors="replace")) > _LONGEST_PATH or any(
        len(each.encode(errors="replace")) > _LONGEST_NAME for each in segments
    ):
        raise IngestError(
            f"{source}: object {key!r:.300} has a name of more than {_LONGEST_NAME} bytes, or a path of more than {_LONGEST_PATH}: rename it"
        )
    if not path.isprintable() or "\ufffd" in path or any("\ud800" <= each <= "\udfff" for each in path):
        raise IngestError(
            f"{source}: object {key!r:.300} has control characters in its name, or bytes that are no UTF-8: rename it"
        )
    if segments[0] in OWN:
        raise IngestError(f"{source}: object {key!r:.300} has a name that an ingest itself uses: rename it")
