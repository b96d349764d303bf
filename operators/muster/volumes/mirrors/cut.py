"""Cuts a stream of bytes into the files that it is made of."""

from __future__ import annotations

from collections.abc import Iterator

from muster.core.errors import Corrupt


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
