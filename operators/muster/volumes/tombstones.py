"""What is left of deleted versions, many in one file: RECORD.json, MANIFEST and marks of each.

::

    STORE/tombstones/<volume>/<first>-<last>-<digest>      (``:`` for ``/``) lowest and highest number in it, BLAKE3 of its bytes
        zlib of [{"number": 7, "deleted": seconds, "committed": seconds, "record": "…", "manifest": "…", "retired": null, "pins": []}, …]

A file is never changed. What comes is written together with what small files hold, and then these are deleted: so a kill, a full disk
or two collectors at once leave a version twice, and never lose it. Its folder, where there is one, counts before its tombstone.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from blake3 import blake3

from muster.core import wire
from muster.core.errors import Corrupt
from muster.volumes.base import Record
from muster.volumes.durability import sync_upward, write_whole
from muster.volumes.layout import Layout
from muster.volumes.manifest import Head, parse_head

_MOST_BYTES = 1 << 20  # of documents in one file
_SMALL_BYTES = 64 << 10  # a smaller file is written again with what comes
_TRIES = 5


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
    """Return what is left of a version; None where no file has it."""
    return _read(layout, volume, lambda first, last: first <= number <= last).get(number)


def above(layout: Layout, volume: str, number: int) -> dict[int, Tombstone]:
    """Return all with a higher number, ascending."""
    found = _read(layout, volume, lambda _, last: last > number)
    return {each: found[each] for each in sorted(found) if each > number}


def damaged(layout: Layout) -> Iterator[Path]:
    """Yield every file that is not as it was written: what it holds is not found."""
    for folder in layout.tombstones("_").parent.glob("*"):
        for path, _, _ in _files(folder):
            try:
                _whole(path)
            except Corrupt:
                yield path
            except FileNotFoundError:  # written again with what came
                continue


def add(layout: Layout, volume: str, gone: Iterator[Tombstone]) -> list[int]:
    """Write the next tombstones durably, as many as one file holds; return their numbers: now their folders may go."""
    if not (come := _few(gone)):
        return []
    folder = layout.tombstones(volume)
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        sync_upward(folder, top=layout.root)
    found, small = dict[int, Tombstone](), list[Path]()
    for path, _, _ in _files(folder):
        with suppress(Corrupt, FileNotFoundError):
            if path.stat().st_size < _SMALL_BYTES:
                found |= _tombstones(path)
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
    while size_bytes < _MOST_BYTES and (each := next(waiting, None)) is not None:
        few.append(each)
        size_bytes += len(each.record) + len(each.manifest)
    return few


def _write(folder: Path, part: list[Tombstone]) -> Path:
    data = zlib.compress(json.dumps([asdict(each) for each in part]).encode())
    path = folder / f"{part[0].number}-{part[-1].number}-{blake3(data).hexdigest()}"
    if not path.exists():
        write_whole(path, data, mode=0o444)
    return path


def _files(folder: Path) -> list[tuple[Path, int, int]]:
    """Return the files of a volume, each with the lowest and the highest number in it."""
    try:
        names = [name.split("-") for name in sorted(os.listdir(folder)) if name[0] != "."]  # noqa: PTH208 - half the time
    except FileNotFoundError:
        return []
    return [(folder / "-".join(name), int(name[0]), int(name[1])) for name in names]


def _read(layout: Layout, volume: str, wanted: Callable[[int, int], bool]) -> dict[int, Tombstone]:
    """Return what the wanted files hold, by number; of a version that was deleted twice the later one."""
    found = dict[int, Tombstone]()
    for _ in range(_TRIES):
        with suppress(FileNotFoundError):  # it was just written again with what came: listed anew
            for path, first, last in _files(layout.tombstones(volume)):
                if wanted(first, last):
                    with suppress(Corrupt):  # fsck says so
                        for number, each in _tombstones(path).items():
                            if number not in found or found[number].deleted <= each.deleted:
                                found[number] = each
            break
    return found


@lru_cache(8)  # what a file holds never changes
def _tombstones(path: Path) -> dict[int, Tombstone]:
    try:
        found = [
            Tombstone(**{**each, "pins": tuple(each["pins"])})
            for each in json.loads(zlib.decompress(_whole(path)))
        ]
    except (ValueError, KeyError, TypeError, zlib.error) as error:
        raise Corrupt(f"{path} is of a later release of muster") from error
    return {each.number: each for each in found}


def _whole(path: Path) -> bytes:
    data = path.read_bytes()
    if blake3(data).hexdigest() != path.name.rpartition("-")[2]:
        raise Corrupt(f"{path} is not as it was written")
    return data
