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
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from muster.core.errors import Corrupt

PREFIX = "b3:"

_HEAD = re.compile(rb"(b3:[0-9a-f]{64})\nmuster-manifest 1 files=(\d+) bytes=(\d+)\n")
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


def read(path: Path) -> dict[str, Entry]:
    """Read and check a whole manifest: its entries by path.

    :raises Corrupt: its digest does not match its content.
    """
    return parse(path.read_bytes(), where=path)


def parse(data: bytes, *, where: object) -> dict[str, Entry]:
    """Check the bytes of a whole manifest, and return its entries by path.

    :param where: names it in errors.
    :raises Corrupt: its digest does not match its content.
    """
    first, _, body = data.partition(b"\n")
    if first.decode(errors="replace") != digest_of(body):
        raise Corrupt(f"{where} is torn or was changed: its digest is not that of its lines")
    entries: dict[str, Entry] = {}
    for line in body.decode().split("\n")[1:-1]:
        match = _LINE.match(line)
        if not match:
            raise Corrupt(f"{where} holds a line that is no file: {line!r:.120}")
        entries[match[3]] = Entry(match[3], match[1], int(match[2]))
    return entries
