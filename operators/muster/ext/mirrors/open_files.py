"""The files of versions in an open layout: written, copied from a version that is there, and read.

They lie below ``<volume>/<n>/data``, under their own paths (:mod:`muster.ext.mirrors.open_layout`).
"""

from __future__ import annotations

import errno
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from blake3 import blake3

from muster.core.errors import Corrupt
from muster.ext.mirrors.base import (
    Home,
    Tell,
    VersionDocuments,
    ordered,
    read_at_source,
    runs,
    stretches,
)
from muster.ext.mirrors.delta import delta
from muster.ext.mirrors.drafts import Cut
from muster.ext.mirrors.objects import LEAST_PATCHED_BYTES, PIECE_BYTES, ObjectsBelow, is_new
from muster.volumes.commit_records import Place
from muster.volumes.gather import check_path
from muster.volumes.hashing import BIG_BYTES, hash_file
from muster.volumes.manifest import Entry

STREAMS = 8


@dataclass(frozen=True)
class _Before:
    """A file in the version before: on this machine, what it is to hold, and its object's name."""

    path: str
    digest: str
    name: str


class OpenFiles:
    """The files of all versions below a URL. Safe to use from many threads. :ivar objects: what lies there."""

    def __init__(self, objects: ObjectsBelow) -> None:
        self.objects = objects
        self._cutting = threading.Lock()  # of one large file at a time: its pieces are held in memory

    def fill(
        self, documents: VersionDocuments, source: Home, *, base: VersionDocuments | None, tell: Tell
    ) -> list[Entry]:
        """Write what is missing of a version's files, and delete what is none of it.

        :param base: a version that both sides have, whose files the store is asked to copy.
        :param tell: is told how many bytes have travelled.
        :return: the files that came from the source.
        :raises Corrupt: a file has not the bytes of the manifest.
        """
        self.objects.tidy(data_of(documents.place))
        equal = {} if base is None else {entry.hash: entry for entry in base.entries.values()}
        with ThreadPoolExecutor(STREAMS) as pool:
            there = self._keep_whole(documents, pool)
            missing = {path: entry for path, entry in documents.entries.items() if path not in there}
            copies = {path: equal[entry.hash] for path, entry in missing.items() if entry.hash in equal}
            for path, done in [
                (path, pool.submit(self._copy, base, same, documents, missing[path]))
                for path, same in copies.items()
            ]:
                if done.result():
                    del missing[path]
            self._fetch(documents, missing, source, pool, tell, base)
        return list(missing.values())

    def read(
        self,
        documents: VersionDocuments,
        entries: Sequence[Entry],
        *,
        first: int = 0,
        size: int | None = None,
    ) -> Iterator[bytes]:
        """Yield the bytes of these files, several pieces at a time."""
        pieces = stretches(entries, first=first, size=size, most=PIECE_BYTES)
        reading = deque[Future[bytes]]()
        with ThreadPoolExecutor(STREAMS) as pool, self.objects.asking(f"read {documents.address}"):

            def ask(entry: Entry, begin: int, end: int) -> bytes:
                data = self.whole(self.name(documents, entry), begin, end)
                if len(data) != end - begin:
                    raise Corrupt(
                        f"{entry.path!r:.200} of {documents.address} is shorter in {self.objects.where} than it was"
                    )
                return data

            for entry, begin, end in pieces:
                reading.append(pool.submit(ask, entry, begin, end))
                if len(reading) >= STREAMS:
                    yield reading.popleft().result()
            while reading:
                yield reading.popleft().result()

    def whole(self, name: str, first: int | None = None, end: int | None = None) -> bytes:
        """Return the bytes of an object that is to be there. :raises Corrupt: it is not, or its disk fails."""
        try:
            return self.objects.read(name, first, end)
        except FileNotFoundError as error:
            raise Corrupt(f"{self.objects.where}/{name} is gone") from error
        except OSError as error:
            if error.errno != errno.EIO or self.objects.folder is None:
                raise
            raise Corrupt(f"{self.objects.where}/{name} cannot be read from its disk") from error

    def name(self, documents: VersionDocuments, entry: Entry) -> str:
        """Return the name of a file's object."""
        path = check_path(entry.path, output=documents.address)
        return f"{data_of(documents.place)}/{path}"

    def _keep_whole(self, documents: VersionDocuments, pool: ThreadPoolExecutor) -> set[str]:
        """Return the files that are there, each read; delete what is none of the version's.

        A run that was killed may have left files of another version with this number, of the same names and sizes.
        """
        sizes = self.objects.sizes(data_of(documents.place))
        for path in sizes.keys() - documents.entries.keys():
            if not is_new(path):  # else another run may be writing it
                self.objects.remove(f"{data_of(documents.place)}/{path}")
        found = [e for path, e in documents.entries.items() if sizes.get(path) == e.size_bytes]
        whole = pool.map(lambda entry: self._is_whole(documents, entry), found)
        return {entry.path for entry, right in zip(found, whole, strict=True) if right}

    def _is_whole(self, documents: VersionDocuments, entry: Entry) -> bool:
        hasher, name = blake3(), self.name(documents, entry)
        for begin in range(0, entry.size_bytes, PIECE_BYTES):
            hasher.update(self.objects.read(name, begin, min(begin + PIECE_BYTES, entry.size_bytes)))
        return hasher.hexdigest() == entry.hash

    def _copy(
        self, base: VersionDocuments | None, same: Entry, documents: VersionDocuments, entry: Entry
    ) -> bool:
        """Have the store copy a file that it has; whether it could."""
        assert base is not None
        return self.objects.copy(self.name(base, same), self.name(documents, entry))

    def _fetch(
        self,
        documents: VersionDocuments,
        missing: Mapping[str, Entry],
        source: Home,
        pool: ThreadPoolExecutor,
        tell: Tell,
        base: VersionDocuments | None,
    ) -> None:
        folder, writing = source.local(documents.place), deque[Future[int]]()
        before = source.local(base.place) if base is not None else None

        def later(work: Callable[..., int], *arguments: Any) -> None:
            writing.append(pool.submit(work, *arguments))
            while len(writing) >= 2 * STREAMS:
                tell(writing.popleft().result())

        if folder is not None:
            for entry in missing.values():
                old = None
                if base is not None and before is not None and (same := base.entries.get(entry.path)):
                    old = _Before(f"{before}/{same.path}", same.hash, self.name(base, same))
                later(self._send, documents, entry, f"{folder}/{entry.path}", old)
        else:
            for run in runs(ordered(documents), missing):
                cut = Cut(source.read(documents, run))
                for entry in run:
                    chunks = cut.take(entry.size_bytes, what=entry.path)
                    if entry.size_bytes <= BIG_BYTES:
                        later(self._write_small, documents, entry, b"".join(chunks))
                    else:
                        self._write_large(documents, entry, chunks, tell)
        while writing:
            tell(writing.popleft().result())

    def _send(self, documents: VersionDocuments, entry: Entry, path: str, old: _Before | None) -> int:
        """Write a file of this machine, and return how many bytes travelled.

        :param old: the same file in the version before.
        :raises Corrupt: it has not the bytes of the manifest.
        """
        name, sent = self.name(documents, entry), None
        with read_at_source(path):
            if hash_file(path) != entry.hash:
                raise _changed(entry)
            if old is not None and self.objects.copies_ranges and entry.size_bytes >= LEAST_PATCHED_BYTES:
                sent = self._send_changed(path, name, old)
            if sent is None:
                self.objects.send(path, name)
                sent = entry.size_bytes
        return sent

    def _send_changed(self, path: str, name: str, old: _Before) -> int | None:
        """Write what differs from the version before; None where the whole file has to be sent."""
        if not self.objects.exists(old.name):
            return None
        try:
            with self._cutting:
                if hash_file(old.path) != old.digest:
                    return None  # fsck reports it
                cut = list(delta(old.path, path))
        except OSError:  # of the file before; what is wrong with this one is seen where it is sent whole
            return None
        return self.objects.send_changed(path, name, before=old.name, stretches=cut)

    def _write_small(self, documents: VersionDocuments, entry: Entry, data: bytes) -> int:
        if blake3(data).hexdigest() != entry.hash:
            raise _changed(entry)
        self.objects.put(self.name(documents, entry), data)
        return entry.size_bytes

    def _write_large(
        self, documents: VersionDocuments, entry: Entry, chunks: Iterator[bytes], tell: Tell
    ) -> None:
        hasher = blake3()
        with self.objects.writing(self.name(documents, entry)) as file:
            for chunk in chunks:
                hasher.update(chunk)
                file.write(chunk)
                tell(len(chunk))
            if hasher.hexdigest() != entry.hash:
                raise _changed(entry)


def data_of(place: Place) -> str:
    """Return the folder of a version's files."""
    return f"{place[0]}/{place[1]}/data"


def _changed(entry: Entry) -> Corrupt:
    return Corrupt(
        f"{entry.path!r:.200} has not the bytes of its manifest: `muster volumes fsck --deep` where it comes from says more"
    )
