"""The files of a version by path, read from its MANIFEST in pages: a look at one of a million files reads one page.

A small manifest, and one without an INDEX (:mod:`muster.volumes.pages`), is read and checked whole; of any other each page is checked by its hash
when it is read. At most :data:`KEPT_PAGES` pages are kept.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, ItemsView, Iterator, Mapping, Sequence, ValuesView
from functools import cached_property, partial
from itertools import chain, islice, pairwise, takewhile
from pathlib import Path

from blake3 import blake3

from muster.core.errors import Corrupt
from muster.volumes.manifest import Entry, Head, digest_of, parse_head
from muster.volumes.pages import LARGE_BYTES, Index, cuts, stored

KEPT_PAGES = 16
AHEAD_PAGES = 64

_LINE = re.compile(r"([0-9a-f]{64}) (?:(\d+)(x?)|-) (.+)\Z")
_SEARCH_LINES = 16  # one search costs as much as parsing 16 lines

Read = Callable[[int, int], bytes]
"""Returns the bytes of a manifest from the first offset to before the second."""


def open_manifest(path: Path) -> Listing:
    """Return the files of the manifest at `path`; of a large one pages are read when they are asked for.

    :raises Corrupt: it is torn or was changed, here or when a page is asked for.
    """
    index = stored(path) if path.stat().st_size > LARGE_BYTES else None
    return read(path) if index is None else Listing.of(index, partial(_stretch, path), where=path)


def read(path: Path) -> Listing:
    """Read a whole manifest and check its digest.

    :raises Corrupt: its digest does not match its content.
    """
    return parse(path.read_bytes(), where=path)


def parse(data: bytes, *, where: object) -> Listing:
    """Check the bytes of a whole manifest, and return its files.

    :param where: names it in errors.
    :raises Corrupt: its digest does not match its content.
    """
    first = data.find(b"\n")
    if data[: max(first, 0)].decode(errors="replace") != digest_of(memoryview(data)[first + 1 :]):
        raise _torn(where)
    begins = cuts(data)
    firsts = [data[begin : data.find(b"\n", begin)] for begin in begins[:-1]]
    paths = [line.decode().partition(" ")[2].partition(" ")[2] for line in firsts]
    head = parse_head(data[:256], where=where)
    return Listing(head, begins, paths, lambda begin, end: data[begin:end], where=where)


class Listing(Mapping[str, Entry]):
    """The files of a manifest by path, in the order of their paths. Lines are parsed when they are asked for.

    Its empty folders are no keys: :meth:`folders` yields them, and :meth:`names` names them.

    :param begins: where its pages begin, and its end. :param firsts: the first path of each page.
    :param read: gives their bytes. :param where: names it in errors.
    :param index: what is known of the pages; None: they were checked together.
    :raises Corrupt: a page that is asked for was changed, or a line of it is no file.
    """

    def __init__(
        self,
        head: Head,
        begins: Sequence[int],
        firsts: Sequence[str],
        read: Read,
        *,
        where: object,
        index: Index | None = None,
    ) -> None:
        self._head, self._begins, self._firsts = head, begins, firsts
        self._read, self._where = read, where
        self._known = index
        self._kept: dict[int, _Page] = {}
        self._next, self._ahead = -2, 1

    @classmethod
    def of(cls, index: Index, read: Read, *, where: object) -> Listing:
        """Return the files of the manifest that an index describes."""
        firsts = [page.first for page in index.pages]
        return cls(index.head, index.begins, firsts, read, where=where, index=index)

    def __repr__(self) -> str:
        """Say how many files there are; the whole of a large version would fill a screen."""
        return f"<{len(self)} files: {', '.join(islice(self, 5))}{', …' if len(self) > 5 else ''}>"

    @property
    def digest(self) -> str:
        """The version's digest."""
        return self._head.digest

    @property
    def size_bytes(self) -> int:
        """The bytes of all files."""
        return self._head.size_bytes

    @cached_property
    def index(self) -> Index:
        """The hash, the files and the bytes of each page; where it has none, the whole manifest is read for it."""
        return self._known or Index.of(bytes(self._head) + self._read(self._begins[0], self._begins[-1]))

    def __len__(self) -> int:
        return self._head.files

    def __iter__(self) -> Iterator[str]:
        return (entry.path for entry in self.entries())

    def __getitem__(self, path: str) -> Entry:
        page = bisect_right(self._firsts, path) - 1
        found = self._page(page).find(path) if page >= 0 and not path.endswith("/") else None
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
        return filter(_is_file, self._lines(0, len(self._firsts)))

    def folders(self, inner: str = "") -> Iterator[str]:
        """Yield the paths of the empty folders, those in the folder `inner` or all."""
        start = f"{inner}/" if inner else ""
        below = takewhile(lambda entry: entry.path.startswith(start), self._since(start))
        return (entry.path[:-1] for entry in below if not _is_file(entry))

    def holds(self, inner: str) -> bool:
        """Whether there is a file or folder `inner`."""
        if not inner or inner in self:
            return True
        first = next(self._since(f"{inner}/"), None)
        return first is not None and first.path.startswith(f"{inner}/")

    def since(self, path: str) -> Iterator[Entry]:
        """Yield the entry of `path` and those after it."""
        return filter(_is_file, self._since(path))

    def _since(self, path: str) -> Iterator[Entry]:
        page = max(bisect_right(self._firsts, path) - 1, 0)
        if page == len(self._firsts):
            return iter(())
        return chain(self._page(page).since(path), self._lines(page + 1, len(self._firsts)))

    def below(self, inner: str) -> Iterator[Entry]:
        """Yield the entry of the file `inner`, or those of all files in the folder `inner`; of none where there is neither.

        :param inner: empty for all files.
        """
        if not inner:
            return self.entries()
        if inner in self:
            return iter((self[inner],))
        return takewhile(lambda entry: entry.path.startswith(f"{inner}/"), self.since(f"{inner}/"))

    def names(self, inner: str = "") -> Iterator[tuple[str, Entry | None]]:
        """Yield the names in the folder `inner`, each with its entry, or None where it is a folder.

        What is in those folders is passed over.
        """
        start = f"{inner}/" if inner else ""
        entries = self._since(start)
        while (entry := next(entries, None)) is not None and entry.path.startswith(start):
            name, is_folder, _ = entry.path[len(start) :].partition("/")
            if name:  # else the folder itself, which is empty
                yield name, None if is_folder else entry
            if is_folder:
                entries = self._since(_past(f"{start}{name}"))

    def span(self, inner: str) -> tuple[int, int]:
        """Return where the files :meth:`below` `inner` begin and end among the bytes of all files, one after the other."""
        if not inner:
            return 0, self.size_bytes
        if inner in self:
            begin = self._bytes_before(inner)
            return begin, begin + self[inner].size_bytes
        return self._bytes_before(f"{inner}/"), self._bytes_before(_past(inner))

    def from_byte(self, first: int) -> Iterator[tuple[int, Entry]]:
        """Yield the file with this byte, among the bytes of all files, and those after it, each with where it begins."""
        page = max(bisect_right(self.index.sizes, first, hi=len(self._firsts)) - 1, 0)
        begin = self.index.sizes[page]
        for entry in filter(_is_file, self._lines(page, len(self._firsts))):
            if begin + entry.size_bytes > first:
                yield begin, entry
            begin += entry.size_bytes

    def outside(self, hashes: Collection[str]) -> Iterator[Entry]:
        """Yield the entries of all pages but those with these hashes, empty folders too."""
        begin = 0
        pages = self.index.pages
        while begin < len(pages):
            if pages[begin].hash in hashes:
                begin += 1
                continue
            end = begin + 1
            while end < len(pages) and pages[end].hash not in hashes:
                end += 1
            yield from self._lines(begin, end)
            begin = end

    def _bytes_before(self, path: str) -> int:
        page = max(bisect_left(self._firsts, path) - 1, 0)
        if not self._firsts:
            return 0
        before = takewhile(lambda entry: entry.path < path, self._page(page).since(""))
        return self.index.sizes[page] + sum(entry.size_bytes for entry in before)

    def _page(self, page: int) -> _Page:
        """Return one page, kept or read. Where those that follow are asked for, ever more are read at once."""
        found = self._kept.get(page)
        if found is None:
            goes_on = self._next <= page <= self._next + self._ahead
            self._ahead = min(2 * self._ahead, KEPT_PAGES) if goes_on else 1
            self._next = min(page + self._ahead, len(self._firsts))
            self._keep(page, self._at_once(page, self._next))
            found = self._kept[page]
        return found

    def _keep(self, first: int, pages: Sequence[_Page]) -> None:
        # Replaced, not changed: threads may share it.
        self._kept = dict([*self._kept.items(), *enumerate(pages, first)][-KEPT_PAGES:])

    def _lines(self, begin: int, end: int) -> Iterator[Entry]:
        return (entry for page in self._pages(begin, end) for entry in page.since(""))

    def _pages(self, begin: int, end: int) -> Iterator[_Page]:
        """Read pages, ever more at once: a look at the first files reads few of them."""
        count = 1
        while begin < end:
            stop = min(begin + count, end)
            yield from self._at_once(begin, stop)
            begin, count = stop, min(2 * count, AHEAD_PAGES)

    def _at_once(self, begin: int, end: int) -> list[_Page]:
        first = self._begins[begin]
        data = memoryview(self._read(first, self._begins[end]))
        offsets = [each - first for each in self._begins[begin : end + 1]]
        return [
            self._checked(page, bytes(data[start:stop]))
            for page, (start, stop) in enumerate(pairwise(offsets), begin)
        ]

    def _checked(self, page: int, data: bytes) -> _Page:
        if self._known is not None and blake3(data).hexdigest() != self._known.pages[page].hash:
            raise _torn(self._where)
        return _Page(data, self._where)


class _Page:
    def __init__(self, data: bytes, where: object) -> None:
        self._data, self._where = data, where
        self._asked = 0
        self._all: dict[str, Entry] | None = None

    def find(self, path: str) -> Entry | None:
        """Return the entry of a path, or None. Where many are asked for, all lines are parsed once."""
        self._asked += 1
        if self._all is None and self._asked * _SEARCH_LINES > self._data.count(b"\n"):
            self._all = {entry.path: entry for entry in self.since("")}
        if self._all is not None:
            return self._all.get(path)
        entry = next(self.since(path), None)
        return entry if entry is not None and entry.path == path else None

    def since(self, path: str) -> Iterator[Entry]:
        """Yield the entry of `path` and those after it."""
        at = self._seek(path) if path else 0
        while at < len(self._data):
            end = self._data.find(b"\n", at)
            yield self._entry(at, end)
            at = end + 1

    def _seek(self, path: str) -> int:
        """Look for a line by halves: they are sorted as text, which is the order of their bytes, too."""
        low, high = 0, len(self._data)
        while low < high:
            begin = self._data.rfind(b"\n", 0, (low + high) // 2) + 1
            end = self._data.find(b"\n", begin)
            if self._entry(begin, end).path < path:
                low = end + 1
            else:
                high = begin
        return low

    def _entry(self, begin: int, end: int) -> Entry:
        match = _LINE.match(line := self._data[begin:end].decode())
        if not match or (match[2] is None) != match[4].endswith("/"):
            raise Corrupt(f"{self._where} holds a line that is no file: {line!r:.120}")
        return Entry(match[4], match[1], int(match[2] or 0), executable=bool(match[3]))


def _is_file(entry: Entry) -> bool:
    return entry.path[-1] != "/"


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


def _past(folder: str) -> str:
    """Return what sorts after all paths in a folder, and before all that come after those."""
    return f"{folder}0"  # 0 follows / in ASCII


def _stretch(path: Path, begin: int, end: int) -> bytes:
    with path.open("rb") as file:
        return os.pread(file.fileno(), end - begin, begin)


def _torn(where: object) -> Corrupt:
    return Corrupt(f"{where} is torn or was changed: its digest is not that of its lines")
