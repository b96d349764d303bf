"""Objects that a cloud holds compressed (Content-Encoding): what it tells of that, and how their bytes are decoded piece by piece."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

_ANY_ZLIB = 32 + zlib.MAX_WBITS
"""Of zlib: it tells by the first bytes whether they are gzip's."""
_AT_ONCE = 16 << 20


def encoding_of(info: dict[str, Any]) -> str:
    """Return the Content-Encoding that a cloud tells of an object, in small letters; empty where it is stored as it is."""
    settings = info.get("content_settings") or {}  # of Azure's own class, which is no dict but reads as one
    told = str(info.get("contentEncoding") or settings.get("content_encoding") or "").strip().lower()
    return "" if told == "identity" else told


class Decoder:
    """Decodes what comes piece by piece, in bounded memory; without an encoding it returns it as it is.

    :param most: bytes that it decodes at once.
    """

    def __init__(self, encoding: str, most: int = _AT_ONCE) -> None:
        self._encoded, self._most = bool(encoding), most
        self._inner = zlib.decompressobj(_ANY_ZLIB)
        self._whole = True

    def decoded(self, data: bytes) -> Iterator[bytes]:
        """Yield what a piece holds. :raises zlib.error: it is encoded otherwise."""
        if not self._encoded:
            yield data
            return
        more = bool(data)
        while more:
            if self._inner.eof:  # gzip's files may follow each other
                self._inner = zlib.decompressobj(_ANY_ZLIB)
            part = self._inner.decompress(data, self._most)
            yield part
            self._whole = self._inner.eof
            data = self._inner.unused_data if self._whole else self._inner.unconsumed_tail
            more = bool(data) or (len(part) == self._most and not self._whole)  # a rest may be within

    def end(self) -> None:
        """Say that nothing more comes. :raises zlib.error: something is missing."""
        if not self._whole:
            raise zlib.error("its end is missing")
