"""Versions and code on the client's disk: each fetched once, checked by its digest, complete or absent.

::

    CACHE/versions/<hex>/            a whole version: MANIFEST data/
    CACHE/versions/<hex>-<hex>/      one file or folder of a version
    CACHE/manifests/                 see :mod:`muster.volumes.service.manifests`
    CACHE/code/<hex>/                a code snapshot

Every name is a digest of the content, so several stores may share a cache, and it may be deleted at
any time when no process reads it.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from blake3 import blake3

from muster.core.errors import Corrupt, NotFound
from muster.volumes import manifest, snapshot
from muster.volumes.base import Version
from muster.volumes.durability import locked, sync_all, temporary, translated
from muster.volumes.gather import check_path
from muster.volumes.layout import Layout
from muster.volumes.listing import Listing
from muster.volumes.manifest import Entry
from muster.volumes.service.archives import members, pack, unpack
from muster.volumes.service.connection import Connection
from muster.volumes.service.manifests import Manifests
from muster.volumes.tree import folders_of, make_folders, remove, set_modes


class Downloads:
    """The files that a client has fetched, below `cache`."""

    def __init__(self, cache: Path, connection: Connection) -> None:
        self._cache, self._connection = cache, connection
        self._manifests = Manifests(cache, connection)
        # snapshots are stored here as in a store
        self._layout = Layout(root=cache, uuid="", links=False, syncfs=True)

    def manifest(self, address: str, digest: str) -> Listing:
        """Return the manifest of the version at `address`, with `digest`."""
        return self._manifests.of(address, digest)

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
            while taken:
                taken = taken[file.write(taken) :]
        os.fchmod(file.fileno(), entry.mode)
    return rest, hasher.hexdigest()
