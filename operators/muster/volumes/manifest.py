"""A version's MANIFEST: every file with its hash and size, and the digest of it all.

::

    b3:<BLAKE3 of all that follows>
    muster-manifest 1 files=2 bytes=1234
    <64 hex digits> 1200 part-0.parquet
    <64 hex digits> 34 schema.json

Lines are sorted by path, so the same content always has the same digest. Paths hold no control
characters (the commit refuses them), so a line is a file.
"""

from __future__ import annotations

import re
from collections.abc import ItemsView, Iterable, Iterator, Mapping, ValuesView
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from muster.core.errors import Corrupt

PREFIX = "b3:"

_HEAD = re.compile(rb"(b3:[0-9a-f]{64})\nmuster-manifest 1 files=(\d+) bytes=(\d+)\n")
_MANY = 1_000  # searches that cost as much as parsing all lines of most manifests
_LINE = re.compile(r"([0-9a-f]{64}) (\d+) (.+)\Z")


@dataclass(frozen=True)
class Entry:
    """One file of a version: path below ``data/``, BLAKE3 in hex, size."""

    path: str
    hash: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Head:
    """The first two lines of a manifest."""

    digest: str
    files: int
    size_bytes: int


def render(entries: Iterable[Entry]) -> str:
    """Write the manifest of `entries`, in any order."""
    ordered = sorted(entries, key=lambda entry: entry.path)
    total = sum(entry.size_bytes for entry in ordered)
    lines = [f"muster-manifest 1 files={len(ordered)} bytes={total}"]
    lines += [f"{entry.hash} {entry.size_bytes} {entry.path}" for entry in ordered]
    body = "\n".join(lines) + "\n"
    return f"{digest_of(body.encode())}\n{body}"


def digest_of(data: bytes) -> str:
    """``b3:`` and the BLAKE3 hash of `data`."""
    return PREFIX + blake3(data).hexdigest()


def read_head(path: Path) -> Head:
    """Read the first two lines of a manifest. :raises Corrupt: they are damaged."""
    with path.open("rb") as file:
        match = _HEAD.match(file.read(256))
    if not match:
        raise Corrupt(f"{path} does not begin as a manifest does: run `muster volumes fsck`")
    return Head(match[1].decode(), int(match[2]), int(match[3]))


def read(path: Path) -> Listing:
    """Read a whole manifest and check its digest: its entries by path, in the order of their paths.

    :raises Corrupt: its digest does not match its content.
    """
    return parse(path.read_bytes(), where=path)


def parse(data: bytes, *, where: object) -> Listing:
    """Check the bytes of a whole manifest, and return its entries by path, in the order of their paths.

    :param where: names it in errors.
    :raises Corrupt: its digest does not match its content.
    """
    first, _, body = data.partition(b"\n")
    if first.decode(errors="replace") != digest_of(body):
        raise Corrupt(f"{where} is torn or was changed: its digest is not that of its lines")
    return Listing(data, where=where)


class Listing(Mapping[str, Entry]):
    """The entries of a manifest by path, in the order of their paths. Lines are parsed when they are asked for.

    So a look at a few of a million files costs one read of the manifest and its digest, and no object for each file.
    One who asks for many by path has all parsed once.

    :param data: the bytes of the manifest, whose digest was checked. :param where: names it in errors.
    :raises Corrupt: a line that is asked for is no file.
    """

    def __init__(self, data: bytes, *, where: object) -> None:
        self._data, self._where = data, where
        head = _HEAD.match(data)
        self._first = data.find(b"\n", data.find(b"\n") + 1) + 1
        self._count = int(head[2]) if head else data.count(b"\n", self._first)
        self._asked = 0
        self._all: dict[str, Entry] | None = None

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        return (entry.path for entry in self._entries())

    def __getitem__(self, path: str) -> Entry:
        self._asked += 1
        if self._all is None and self._asked > _MANY:
            self._all = {entry.path: entry for entry in self._entries()}
        found = self._find(path) if self._all is None else self._all.get(path)
        if found is None:
            raise KeyError(path)
        return found

    def values(self) -> ValuesView[Entry]:
        """Return the entries, in the order of their paths."""
        return _Values(self)

    def items(self) -> ItemsView[str, Entry]:
        """Return paths and entries, in the order of the paths."""
        return _Items(self)

    def entries(self) -> Iterator[Entry]:
        """Yield the entries, in the order of their paths."""
        return self._entries() if self._all is None else iter(self._all.values())

    def _entries(self) -> Iterator[Entry]:
        at = self._first
        while at < len(self._data):
            end = self._data.find(b"\n", at)
            yield self._entry(at, end)
            at = end + 1

    def _entry(self, begin: int, end: int) -> Entry:
        match = _LINE.match(line := self._data[begin:end].decode())
        if not match:
            raise Corrupt(f"{self._where} holds a line that is no file: {line!r:.120}")
        return Entry(match[3], match[1], int(match[2]))

    def _find(self, path: str) -> Entry | None:
        """Look for a line by halves: they are sorted as text, which is the order of their bytes, too."""
        low, high = self._first, len(self._data)
        while low < high:
            begin = self._data.rfind(b"\n", 0, (low + high) // 2) + 1
            end = self._data.find(b"\n", begin)
            entry = self._entry(begin, end)
            if entry.path == path:
                return entry
            if entry.path < path:
                low = end + 1
            else:
                high = begin
        return None


class _Values(ValuesView[Entry]):
    """Entries, without a search for each path."""

    _mapping: Listing

    def __iter__(self) -> Iterator[Entry]:
        return self._mapping.entries()


class _Items(ItemsView[str, Entry]):
    """Paths and entries, likewise."""

    _mapping: Listing

    def __iter__(self) -> Iterator[tuple[str, Entry]]:
        return ((entry.path, entry) for entry in self._mapping.entries())
