"""A version's MANIFEST: every file with its hash and size, and the digest of it all.

::

    b3:<BLAKE3 of all that follows>
    muster-manifest 1 files=2 bytes=1234
    <64 hex digits> 1200 part-0.parquet
    <64 hex digits> 34x run.sh
    af1349b9…3262 - logs/

Lines are sorted by path, so the same content always has the same digest. Paths hold no control
characters (the commit refuses them), so a line is a file; one with an ``x`` may be run. A path that ends in a slash is an empty
folder, whose hash is that of nothing; no count of files has it. A version without either has the manifest that it always had.
:mod:`muster.volumes.listing` reads it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from blake3 import blake3

from muster.core.errors import Corrupt

PREFIX = "b3:"
NOTHING = blake3().hexdigest()

_HEAD = re.compile(rb"(b3:[0-9a-f]{64})\nmuster-manifest 1 files=(\d+) bytes=(\d+)\n")
_AT_ONCE = 10_000  # lines that are joined at a time


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of a version: path below ``data/``, BLAKE3 in hex, size, and whether it may be run."""

    path: str
    hash: str
    size_bytes: int
    executable: bool = field(default=False, kw_only=True)

    @property
    def mode(self) -> int:
        """Its permission bits in a store."""
        return 0o555 if self.executable else 0o444

    @property
    def content(self) -> tuple[str, bool]:
        """What two files have in common that may be one, by a hard link: the mode is the inode's."""
        return self.hash, self.executable


@dataclass(frozen=True, slots=True)
class Head:
    """The first two lines of a manifest."""

    digest: str
    files: int
    size_bytes: int

    def __bytes__(self) -> bytes:
        """The lines as they are written."""
        return f"{self.digest}\n{_second_line(self.files, self.size_bytes)}".encode()


def render(entries: Iterable[Entry], *, folders: Sequence[str] = ()) -> bytes:
    """Write the manifest of `entries` and of empty `folders`, in any order."""
    ordered = sorted(entries, key=lambda entry: entry.path)
    total = sum(entry.size_bytes for entry in ordered)
    body = bytearray(_second_line(len(ordered), total).encode())
    if folders:
        empty = (Entry(f"{folder}/", NOTHING, 0) for folder in folders)
        ordered = sorted([*ordered, *empty], key=lambda entry: entry.path)
    for first in range(0, len(ordered), _AT_ONCE):
        body += "".join(map(_line, ordered[first : first + _AT_ONCE])).encode()
    return b"%s\n%s" % (digest_of(body).encode(), body)


def _line(entry: Entry) -> str:
    size = "-" if entry.path[-1] == "/" else f"{entry.size_bytes}{'x' * entry.executable}"
    return f"{entry.hash} {size} {entry.path}\n"


def digest_of(data: bytes | bytearray | memoryview) -> str:
    """``b3:`` and the BLAKE3 hash of `data`."""
    return PREFIX + blake3(data).hexdigest()


def read_head(path: Path) -> Head:
    """Read the first two lines of a manifest. :raises Corrupt: they are damaged."""
    with path.open("rb") as file:
        return parse_head(file.read(256), where=path)


def parse_head(data: bytes, *, where: object) -> Head:
    """Return what the first two lines of a manifest say.

    :param data: the manifest's beginning, 256 bytes or more. :param where: names it in errors.
    :raises Corrupt: they are damaged.
    """
    match = _HEAD.match(data)
    if not match:
        raise Corrupt(f"{where} does not begin as a manifest does: run `muster volumes fsck`")
    return Head(match[1].decode(), int(match[2]), int(match[3]))


def _second_line(files: int, size_bytes: int) -> str:
    return f"muster-manifest 1 files={files} bytes={size_bytes}\n"
