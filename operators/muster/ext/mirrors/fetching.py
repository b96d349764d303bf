"""Fetches the files that a draft lacks from a home: of this machine, or as streams of adjacent ones."""

from __future__ import annotations

from collections.abc import Iterator

from muster.core.errors import Corrupt
from muster.ext.mirrors.base import Documents, Source, Tell, ordered, read_at_source, runs
from muster.ext.mirrors.drafts import Filling


def fetch(filling: Filling, documents: Documents, source: Source, tell: Tell) -> None:
    """Fetch the missing files. :raises Corrupt: one is gone, or has not the bytes of its manifest."""
    folder = source.local(documents.place)
    if folder is not None:
        for entry in list(filling.missing.values()):
            with read_at_source(path := f"{folder}/{entry.path}"):
                filling.copy(entry, path, tell)
        return
    for run in list(runs(ordered(documents), filling.missing)):
        chunks = Cut(source.read(documents, run, first=(part := filling.part_bytes(run[0]))))
        for entry in run:
            filling.write(entry, chunks.take(entry.size_bytes - part, what=entry.path), tell)
            part = 0


class Cut:
    """A stream of bytes, cut into files."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks, self._rest = chunks, b""

    def take(self, size: int, *, what: str) -> Iterator[bytes]:
        """Yield the next `size` bytes. :raises Corrupt: the stream ends before."""
        while size > 0:
            piece = self._rest or next(self._chunks, b"")
            if not piece:
                raise Corrupt(f"{what!r:.200} ended {size} bytes too early on its way")
            self._rest = piece[size:]
            size -= len(piece) - len(self._rest)
            yield piece[: len(piece) - len(self._rest)] if self._rest else piece
