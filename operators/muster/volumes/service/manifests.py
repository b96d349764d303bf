"""Manifests of a store service on the client's disk: a small one whole, of a large one the pages that were asked for.

::

    CACHE/manifests/<hex>          a whole manifest
    CACHE/manifests/<hex>.index    the pages of a large one (:mod:`muster.volumes.pages`)
    CACHE/manifests/<hex>.pages    those of them that were fetched, each at its place

What was not fetched is a hole, whose hash is wrong, and so is a page that a kill cut off: both are asked for when they are needed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from blake3 import blake3

from muster.core.errors import Corrupt
from muster.volumes.durability import translated, write_whole
from muster.volumes.listing import Listing, Read, parse, read
from muster.volumes.manifest import PREFIX
from muster.volumes.pages import LARGE_BYTES, Index, Page
from muster.volumes.service.connection import Connection

FIRST_BYTES = 1 << 17  # all of most manifests
_CALL, INDEX_CALL = "/v1/manifest", "/v1/manifest/index"


class Manifests:
    """The manifests that a client has fetched, below `cache`."""

    def __init__(self, cache: Path, connection: Connection) -> None:
        self._room, self._connection = cache / "manifests", connection

    def of(self, address: str, digest: str) -> Listing:
        """Return the files of the version at `address`, with `digest`. :raises Corrupt: it was sent another manifest."""
        path = self._room / digest.removeprefix(PREFIX)
        if path.is_file():
            return read(path)
        pages = _Pages(path.with_name(f"{path.name}.pages"), address, self._connection)
        index = self._kept_index(path, digest) or self._fetched(path, pages, digest)
        return read(path) if index is None else Listing.of(index, pages.of(index), where=_named(address))

    def _kept_index(self, path: Path, digest: str) -> Index | None:
        kept = path.with_name(f"{path.name}.index")
        with suppress(FileNotFoundError, Corrupt):  # a torn one is fetched again
            index = Index.parse(kept.read_bytes(), where=kept)
            return index if index.head.digest == digest else None
        return None

    def _fetched(self, path: Path, pages: _Pages, digest: str) -> Index | None:
        """Fetch a small manifest whole, or the index of a large one."""
        begun, size = pages.beginning()
        if size > LARGE_BYTES:
            index = self._index(pages.address, digest)
            with translated(f"keep the manifest of {pages.address}"):
                self._room.mkdir(parents=True, exist_ok=True)
                write_whole(path.with_name(f"{path.name}.index"), index.render(), durable=False)
                pages.keep(begun, at=0)
            return index
        body = begun + b"".join(pages.fetched(len(begun), size))
        if parse(body, where=_named(pages.address)).digest != digest:
            raise _other(pages.address, digest)
        with translated(f"keep the manifest of {pages.address}"):
            self._room.mkdir(parents=True, exist_ok=True)
            write_whole(path, body)
        return None

    def _index(self, address: str, digest: str) -> Index:
        body = self._connection.request("GET", INDEX_CALL, query={"address": address}).content
        index = Index.parse(body, where=f"the index of {_named(address)}")
        if index.head.digest != digest:
            raise _other(address, digest)
        return index


class _Pages:
    """The pages of one manifest, in a file with holes."""

    def __init__(self, path: Path, address: str, connection: Connection) -> None:
        self.address = address
        self._path, self._connection = path, connection

    def beginning(self) -> tuple[bytes, int]:
        """Return the first bytes of the manifest, and how many there are."""
        wanted = {"range": f"bytes=0-{FIRST_BYTES - 1}"}
        answer = self._connection.request("GET", _CALL, query={"address": self.address}, headers=wanted)
        told = answer.headers.get("content-range", "").rpartition("/")[2]  # none: all of it was sent
        return answer.content, int(told) if told.isdecimal() else len(answer.content)

    def fetched(self, begin: int, end: int) -> Iterator[bytes]:
        """Yield these bytes as they arrive."""
        return self._connection.stretch(_CALL, first=begin, end=end, address=self.address)

    def keep(self, data: bytes | bytearray, *, at: int) -> None:
        """Write bytes to their place."""
        handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.pwrite(handle, data, at)
        finally:
            os.close(handle)

    def of(self, index: Index) -> Read:
        """Return a function that reads pages, of which it fetches those that are not here."""

        def read(begin: int, end: int) -> bytes:
            data = bytearray(self._kept(begin, end).ljust(end - begin, b"\0"))
            lacks = [page for page in index.between(begin, end) if _hash(data, page, begin) != page.hash]
            if lacks:
                first, last = lacks[0].begin, lacks[-1].end
                data[first - begin : last - begin] = b"".join(self.fetched(first, last))
                with translated(f"keep the manifest of {self.address}"):
                    self.keep(data[first - begin : last - begin], at=first)
            return bytes(data)

        return read

    def _kept(self, begin: int, end: int) -> bytes:
        with suppress(FileNotFoundError), self._path.open("rb") as file:
            return os.pread(file.fileno(), end - begin, begin)
        return b""


def _hash(data: bytearray, page: Page, begin: int) -> str:
    return blake3(memoryview(data)[page.begin - begin : page.end - begin]).hexdigest()


def _named(address: str) -> str:
    return f"the manifest of {address}"


def _other(address: str, digest: str) -> Corrupt:
    return Corrupt(f"{_named(address)} that was sent is not that of {digest}: run `muster volumes fsck`")
