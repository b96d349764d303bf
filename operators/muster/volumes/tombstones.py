"""The documents of deleted versions, many in one file: RECORD.json, MANIFEST and marks of each.

::

    STORE/tombstones/<volume>/<first>-<last>-<digest>      (``:`` for ``/``) lowest and highest number in it, BLAKE3 of its bytes
        zlib of [{"number": 7, "deleted": seconds, "committed": seconds, "record": "…", "manifest": "…", "retired": null, "pins": []}, …]

A file is never changed. What comes is written together with what small files hold, and then these are deleted: so a kill, a full disk
or two collectors at once leave a version twice, and never lose it. Its folder, where there is one, counts before its tombstone. A field
of a later release is passed over, and a file with one is left as it is.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TypeVar

from blake3 import blake3

from muster.core import wire
from muster.core.errors import Corrupt, StoreError
from muster.volumes.base import Record
from muster.volumes.durability import read_whole, sync_upward, write_whole
from muster.volumes.layout import Layout
from muster.volumes.manifest import Head, parse_head

MOST_BYTES = 1 << 20  # of documents in one file
_SMALL_BYTES = 64 << 10  # a smaller file is written again with what comes
_TRIES = 5
_AT_ONCE = 100  # names that one getdents(2) returns: of more, a listing may miss one that came meanwhile
_NAME = re.compile(r"(\d+)-(\d+)-[0-9a-f]{64}")

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Tombstone:
    """One deleted version. Times are seconds since the epoch.

    :param record: its RECORD.json. :param manifest: its MANIFEST.
    """

    number: int
    deleted: float
    committed: float
    record: str
    manifest: str
    retired: str | None = None
    pins: tuple[str, ...] = ()

    @property
    def head(self) -> Head:
        """The first two lines of its manifest."""
        return parse_head(self.manifest[:256].encode(), where=f"the manifest of {self.number}")

    @cached_property
    def origin(self) -> Record:
        """Its record."""
        return wire.loads(Record, self.record)


def find(layout: Layout, volume: str, number: int) -> Tombstone | None:
    """Return the documents of a deleted version; None where no file has them."""
    return _read(layout, volume, lambda first, last: first <= number <= last, lambda gone: gone).get(number)


def above(layout: Layout, volume: str, number: int, keep: Callable[[Tombstone], T]) -> dict[int, T]:
    """Return what to `keep` of each with a higher number, ascending: the documents of all may fill the memory."""
    found = _read(layout, volume, lambda _, last: last > number, keep)
    return {each: found[each] for each in sorted(found) if each > number}


def last(layout: Layout, volume: str) -> int:
    """Return the highest number that the names of files say, which need not be whole; 0 where there is none."""
    return max((last for _, _, last in files_of(layout.tombstones(volume))), default=0)


def lost_in(layout: Layout, volume: str, number: int) -> Path | None:
    """Return a file that cannot be read and whose name says that a version may be in it; None where there is none."""
    files = files_of(layout.tombstones(volume))
    return next((path for path, first, last in files if first <= number <= last and _flaw(path)), None)


def damaged(layout: Layout) -> Iterator[tuple[Path, str]]:
    """Yield every file that cannot be read, and why: what it holds is not found."""
    for folder in layout.tombstones("_").parent.glob("*"):
        yield from ((path, why) for path, _, _ in files_of(folder) if (why := _flaw(path)))


def add(layout: Layout, volume: str, gone: Iterator[Tombstone]) -> list[int]:
    """Write the next tombstones durably, as many as one file holds; return their numbers: now their folders may go."""
    if not (come := _few(gone)):
        return []
    folder = layout.tombstones(volume)
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        sync_upward(folder, top=layout.root)
    found, small = dict[int, Tombstone](), list[Path]()
    for path, _, _ in files_of(folder):
        with suppress(Corrupt, FileNotFoundError):
            if path.stat().st_size < _SMALL_BYTES and (loaded := load(path))[1]:
                found |= loaded[0]
                small.append(path)
    found |= {each.number: each for each in come}
    waiting = (found[number] for number in sorted(found))
    while part := _few(waiting):
        path = _write(folder, part)
        if path in small:
            small.remove(path)
    for path in small:
        path.unlink(missing_ok=True)
    return [each.number for each in come]


def _few(waiting: Iterator[Tombstone]) -> list[Tombstone]:
    """Return the next tombstones, as many as one file holds."""
    few, size_bytes = list[Tombstone](), 0
    while size_bytes < MOST_BYTES and (each := next(waiting, None)) is not None:
        few.append(each)
        size_bytes += len(each.record) + len(each.manifest)
    return few


def _write(folder: Path, part: list[Tombstone]) -> Path:
    data = zlib.compress(json.dumps([asdict(each) for each in part]).encode())
    path = folder / f"{part[0].number}-{part[-1].number}-{blake3(data).hexdigest()}"
    if not path.exists():
        write_whole(path, data, mode=0o444)
    return path


def files_of(folder: Path) -> list[tuple[Path, int, int]]:
    """Return the files of a volume, each with the lowest and the highest number in it."""
    try:
        names = os.listdir(folder)  # noqa: PTH208 - half the time
        while len(names) > _AT_ONCE and sorted(again := os.listdir(folder)) != sorted(names):  # noqa: PTH208
            names = again
    except FileNotFoundError:
        return []
    found = [_NAME.fullmatch(name) for name in sorted(names)]
    return [(folder / each[0], int(each[1]), int(each[2])) for each in found if each is not None]


def _read(
    layout: Layout, volume: str, wanted: Callable[[int, int], bool], keep: Callable[[Tombstone], T]
) -> dict[int, T]:
    """Return what to `keep` of all in the wanted files, by number; of a version that was deleted twice the later one.

    :raises StoreError: the files change all the time.
    """
    for _ in range(_TRIES):
        found = dict[int, tuple[float, T]]()
        with suppress(FileNotFoundError):  # it was just written again with what came: listed anew
            for path, first, last in files_of(layout.tombstones(volume)):
                loaded = dict[int, Tombstone]()
                with suppress(Corrupt):  # fsck says so
                    loaded = load(path)[0] if wanted(first, last) else loaded
                for number, each in loaded.items():
                    if number not in found or found[number][0] <= each.deleted:
                        found[number] = each.deleted, keep(each)
            return {number: kept for number, (_, kept) in found.items()}
    raise StoreError(f"{layout.tombstones(volume)} changes all the time: try it again")


@lru_cache(8)  # what a file holds never changes
def load(path: Path) -> tuple[dict[int, Tombstone], bool]:
    """Return what a file holds, and whether that is all."""
    data = read_whole(path)
    if blake3(data).hexdigest() != path.name.rpartition("-")[2]:
        raise Corrupt(f"{path} is not as it was written")
    try:
        rows, known = json.loads(zlib.decompress(data)), {each.name for each in fields(Tombstone)}
        own = [{name: value for name, value in row.items() if name in known} for row in rows]
        found = [Tombstone(**{**row, "pins": tuple(row["pins"])}) for row in own]
        return {each.number: each for each in found}, own == rows
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, zlib.error) as error:
        raise Corrupt(f"{path} is of another release of muster: {error}") from error


def _flaw(path: Path) -> str:
    """Return why a file cannot be read; empty where it can, or was just written again with what came."""
    try:
        with suppress(FileNotFoundError):
            load.__wrapped__(path)
    except Corrupt as error:
        return str(error)
    return ""
