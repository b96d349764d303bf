"""The pages of a large manifest, each with its hash: a reader of a few files reads and checks a few pages, not the whole.

::

    b3:<BLAKE3 of all that follows>
    muster-index 1 of b3:<digest of the manifest> files=2 bytes=1234
    <64 hex digits> 65620 640 1234 part-0.parquet     BLAKE3 of a page, its bytes, its files and their bytes, its first path

That is INDEX, beside a MANIFEST of more than :data:`LARGE_BYTES`. It may be deleted, and releases before it do not know it: the manifest
is read whole then.

A page ends where the hash of the next file begins with ``00``, after :data:`LEAST_BYTES`. So a changed or added file changes one page, and two versions of
which few files differ have most pages in common.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path

from blake3 import blake3

from muster.core.errors import Corrupt
from muster.volumes.manifest import Head, digest_of, parse_head, read_head

INDEX = "INDEX"
LARGE_BYTES = 1 << 20
LEAST_BYTES, MOST_BYTES = 1 << 16, 1 << 18

_CUT = b"\n00"
_SIZES = re.compile(rb"^[0-9a-f]{64} (\d+)x? ", re.MULTILINE)
_HEAD = re.compile(rb"muster-index 1 of (b3:[0-9a-f]{64}) files=(\d+) bytes=(\d+)\Z")
_LINE = re.compile(r"([0-9a-f]{64}) (\d+) (\d+) (\d+) (.+)\Z")


@dataclass(frozen=True, slots=True)
class Page:
    """Some lines of a manifest: the bytes from `begin` to before `end`.

    :param hash: their BLAKE3 in hex. :param files: how many lines. :param size_bytes: the bytes of these files.
    :param first: the path of the first.
    """

    hash: str
    begin: int
    end: int
    files: int
    size_bytes: int
    first: str


@dataclass(frozen=True)
class Index:
    """All pages of a manifest, in their order."""

    head: Head
    pages: tuple[Page, ...]

    @classmethod
    def of(cls, data: bytes) -> Index:
        """Cut a manifest whose digest was checked."""
        head = parse_head(data, where="the manifest")
        return cls(head, tuple(_page(data, begin, end) for begin, end in pairwise(cuts(data))))

    @classmethod
    def parse(cls, data: bytes, *, where: object) -> Index:
        """Read what :meth:`render` wrote. :param where: names it in errors. :raises Corrupt: it is torn, or of another form."""
        first, _, body = data.partition(b"\n")
        second, _, lines = body.partition(b"\n")
        match = _HEAD.match(second)
        if first.decode(errors="replace") != digest_of(body) or not match:
            raise Corrupt(f"{where} is torn or was changed on its way: its digest is not that of its lines")
        head = Head(match[1].decode(), int(match[2]), int(match[3]))
        return cls(head, tuple(_pages(lines.decode(), begin=len(bytes(head)), where=where)))

    def render(self) -> bytes:
        """Return the bytes of INDEX."""
        head = self.head
        lines = [f"muster-index 1 of {head.digest} files={head.files} bytes={head.size_bytes}"]
        lines += [
            f"{page.hash} {page.end - page.begin} {page.files} {page.size_bytes} {page.first}"
            for page in self.pages
        ]
        body = "\n".join([*lines, ""]).encode()
        return b"%s\n%s" % (digest_of(body).encode(), body)

    @cached_property
    def sizes(self) -> list[int]:
        """The bytes of all files before each page, and of all."""
        return [0, *accumulate(page.size_bytes for page in self.pages)]

    @cached_property
    def begins(self) -> list[int]:
        """Where each page begins, and where the last ends."""
        return [
            *(page.begin for page in self.pages),
            self.pages[-1].end if self.pages else len(bytes(self.head)),
        ]

    def between(self, begin: int, end: int) -> tuple[Page, ...]:
        """Return the pages of these bytes, which begin and end with a page."""
        first, stop = bisect_right(self.begins, begin) - 1, bisect_right(self.begins, end) - 1
        return self.pages[first:stop]


def beside(data: bytes) -> dict[str, bytes]:
    """Return the INDEX that lies beside a manifest of these bytes, by its name; a small one has none."""
    return {INDEX: Index.of(data).render()} if len(data) > LARGE_BYTES else {}


def stored(path: Path) -> Index | None:
    """Return the index of the manifest at `path`; None where there is none, or none of this manifest.

    :raises Corrupt: the manifest's head is damaged.
    """
    try:
        index = Index.parse(path.with_name(INDEX).read_bytes(), where=path.with_name(INDEX))
    except (FileNotFoundError, Corrupt):
        return None
    return index if index.head == read_head(path) else None


def cuts(data: bytes) -> list[int]:
    """Return where the pages of a manifest begin, and its end."""
    at = data.find(b"\n", data.find(b"\n") + 1) + 1
    found = [at]
    while at < len(data):
        at = _end(data, at)
        found.append(at)
    return found


def _end(data: bytes, begin: int) -> int:
    if len(data) - begin <= LEAST_BYTES:
        return len(data)
    cut = data.find(_CUT, begin + LEAST_BYTES, begin + MOST_BYTES)
    if cut < 0:
        cut = data.find(b"\n", min(begin + MOST_BYTES, len(data) - 1))
    return cut + 1


def _page(data: bytes, begin: int, end: int) -> Page:
    lines = data[begin:end]
    sizes = [int(size) for size in _SIZES.findall(lines)]
    first = lines[: lines.find(b"\n")].split(b" ", 2)[2].decode()
    return Page(blake3(lines).hexdigest(), begin, end, len(sizes), sum(sizes), first)


def _pages(text: str, *, begin: int, where: object) -> Iterator[Page]:
    for line in text.split("\n")[:-1]:
        match = _LINE.match(line)
        if not match:
            raise Corrupt(f"{where} holds a line that is no page: {line!r:.120}")
        end = begin + int(match[2])
        yield Page(match[1], begin, end, int(match[3]), int(match[4]), match[5])
        begin = end
