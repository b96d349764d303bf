"""Versions, manifests and code on the client's disk: each fetched once, checked by its digest, complete or absent.

::

    CACHE/versions/<hex>/            a whole version: MANIFEST data/
    CACHE/versions/<hex>-<hex>/      one file or folder of a version
    CACHE/manifests/<hex>            a whole manifest
                    <hex>.index      the pages of a large one (:mod:`muster.volumes.pages`)
                    <hex>.pages      those of them that were fetched, each at its place
    CACHE/code/<hex>/                a code snapshot

Every name is a digest of the content, so several stores may share a cache, and it may be deleted at
any time when no process reads it. A page that was not fetched is a hole, whose hash is wrong, and so is one that a kill cut off: both are
asked for when they are needed.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

from blake3 import blake3

from muster.core.errors import Corrupt, NotFound
from muster.core.holding import closing_handle, write_all
from muster.volumes import manifest, snapshot
from muster.volumes.base import Version
from muster.volumes.durability import locked, sync_all, temporary, translated, write_whole
from muster.volumes.gather import check_path
from muster.volumes.layout import Layout
from muster.volumes.listing import Listing, Read, parse, read
from muster.volumes.manifest import PREFIX, Entry
from muster.volumes.pages import LARGE_BYTES, Index, Page
from muster.volumes.service.archives import members, pack, unpack
from muster.volumes.service.connection import Connection
from muster.volumes.tree import folders_of, make_folders, remove, set_modes


class Downloads:
    """The files that a client has fetched, below `cache`."""

    def __init__(self, cache: Path, connection: Connection) -> None:
        self._cache, self._connection = cache, connection
        # snapshots are stored here as in a store
        self._layout = Layout(root=cache, uuid="", links=False, syncfs=True)

    def manifest(self, address: str, digest: str) -> Listing:
        """Return the files of the version at `address`, with `digest`. :raises Corrupt: it was sent another manifest."""
        path = self._cache / "manifests" / digest.removeprefix(PREFIX)
        if path.is_file():
            return read(path)
        pages = _Pages(path.with_name(f"{path.name}.pages"), address, self._connection)
        index = self._kept_index(path, digest) or self._fetched(path, pages, digest)
        return read(path) if index is None else Listing.of(index, pages.of(index), where=_named(address))

    def version(self, version: Version, inner: str) -> Path:
        """Return the folder of a version's data, or `inner` in it; fetched if missing."""
        name = version.digest.removeprefix(manifest.PREFIX)
        whole = self._cache / "versions" / name
        target = whole
        if inner and not whole.is_dir():
            target = whole.with_name(f"{name}-{blake3(inner.encode()).hexdigest()[:16]}")
        if inner or not target.is_dir():
            entries = self.manifest(version.address, version.digest)
            if not entries.holds(inner):
                there = ", ".join(sorted(name for name, _ in islice(entries.names(), 8)))
                raise NotFound(f"{version.address} holds no {inner!r:.120}; at its top are {there}")
            if not target.is_dir():
                with translated(f"fetch {version.address} into {self._cache}"):
                    self._fetch(version, target, entries, inner)
        return target / "data" / inner if inner else target / "data"

    def code(self, digest: str) -> Path:
        """Return the folder of a code snapshot; fetched if missing."""
        target = self._layout.code(digest)
        if not target.is_dir():
            with translated(f"fetch code snapshot {digest} into {self._cache}"):
                self._room("code")
                self._fetch_code(digest)
        return target

    def keep(self, root: Path, files: Sequence[str], texts: Mapping[str, str] | None) -> str:
        """Store a code snapshot here, to be sent; return its digest."""
        with translated("keep the code snapshot"):
            self._room("code")
            return snapshot.keep(self._layout, root, files, texts=texts)

    def packed(self, digest: str) -> Iterator[bytes]:
        """Return a stored code snapshot as an archive."""
        return pack(members(self._layout.code(digest)))

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
                self._room("manifests")
                write_whole(path.with_name(f"{path.name}.index"), index.render(), durable=False)
                pages.keep(begun, at=0)
            return index
        body = begun + b"".join(pages.fetched(len(begun), size))
        if parse(body, where=_named(pages.address)).digest != digest:
            raise _other(pages.address, digest)
        with translated(f"keep the manifest of {pages.address}"):
            self._room("manifests")
            write_whole(path, body)
        return None

    def _index(self, address: str, digest: str) -> Index:
        body = self._connection.request("GET", INDEX_CALL, query={"address": address}).content
        index = Index.parse(body, where=f"the index of {_named(address)}")
        if index.head.digest != digest:
            raise _other(address, digest)
        return index

    def _room(self, name: str) -> Path:
        room = self._cache / name
        room.mkdir(parents=True, exist_ok=True)
        return room

    def _fetch(self, version: Version, target: Path, entries: Listing, inner: str) -> None:
        room = self._room("versions")
        with locked(room / f".{target.name}.lock"):
            if target.is_dir():
                return  # another process fetched it meanwhile
            part = room / f".part-{target.name}"
            remove(part)
            try:
                (part / "data").mkdir(parents=True)
                self._receive(version, part / "data", entries, inner)
                set_modes(part / "data", folders_of(part / "data"), 0o555)
                sync_all(part)
                part.rename(target)
            finally:
                remove(part)

    def _receive(self, version: Version, data: Path, entries: Listing, inner: str) -> None:
        """Write the file or folder `inner`, whose files are adjacent in the version's stream."""
        first, end = entries.span(inner)
        chunks = self._connection.stretch("/v1/data", first=first, end=end, address=version.address)
        rest = memoryview(b"")
        for entry in entries.below(inner):
            target = data / check_path(entry.path, output=version.volume)
            make_folders(target.parent)
            rest, found = _write(target, entry, rest, chunks)
            if found != entry.hash:
                raise Corrupt(
                    f"{entry.path!r:.200} of {version.address} was sent with other bytes than were committed: "
                    "run `muster volumes fsck --deep` where the store is"
                )

        for folder in entries.folders(inner):
            make_folders(data / check_path(folder, output=version.volume))

    def _fetch_code(self, digest: str) -> None:
        part = temporary(self._layout.code(digest))
        part.mkdir()
        try:
            body = io.BytesIO(self._connection.request("GET", f"/v1/code/{digest}").content)
            files = unpack(body, part, check=lambda path: check_path(path, output="code"))
            found = snapshot.keep(self._layout, part, list(files))
        finally:
            remove(part)
        if found != digest:
            raise Corrupt(
                f"code snapshot {digest} was sent as {found}: it was changed on its way, or in the store"
            )


def _write(target: Path, entry: Entry, rest: memoryview, chunks: Iterator[bytes]) -> tuple[memoryview, str]:
    """Write one file from the stream; return what is left of the last chunk, and the file's BLAKE3."""
    hasher, size = blake3(), entry.size_bytes
    with target.open("xb", buffering=0) as file:
        while size:
            rest = rest or memoryview(next(chunks))
            taken, rest = rest[:size], rest[size:]
            hasher.update(taken)
            size -= len(taken)
            write_all(file.fileno(), taken)
        os.fchmod(file.fileno(), entry.mode)
    return rest, hasher.hexdigest()


FIRST_BYTES = 1 << 17  # all of most manifests
_CALL, INDEX_CALL = "/v1/manifest", "/v1/manifest/index"


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
        with closing_handle(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)) as handle:
            os.pwrite(handle, data, at)

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
