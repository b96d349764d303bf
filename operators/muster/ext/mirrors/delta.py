"""A changed file as pieces of the file before it, and the bytes that are new.

Both are cut where their content says (FastCDC, Xia and others, IEEE TPDS 2020), so that bytes that were put in or
taken away move no later cut. Pieces are compared by BLAKE3. The one who reads a delta needs the file before, and
nothing else: the sender has both, and no list of pieces is kept or asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from blake3 import blake3

CHUNK_BYTES = 16 << 10
LEAST_BYTES = 1 << 20
"""Smaller files travel whole: a request costs more than their bytes."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch of a file: from byte `at` on, `size` bytes.

    :param first: where the file before holds the same bytes; None: they are new.
    """

    at: int
    size: int
    first: int | None


def delta(before: str, now: str, *, beat: Callable[[], None] = lambda: None) -> Iterator[Stretch]:
    """Yield the stretches of the file `now`, in order, joined where they follow each other.

    Costs one read of both files; memory grows by some 100 bytes for each 16 KiB of the file before.

    :param beat: called for each piece: large files are read for minutes before there is anything to yield.
    """
    known = {digest: at for at, _, digest in pieces(before, beat)}
    return _joined(Stretch(at, size, known.get(digest)) for at, size, digest in pieces(now, beat))


def pieces(path: str, beat: Callable[[], None]) -> Iterator[tuple[int, int, bytes]]:
    """Yield place, size and digest of each piece of a file."""
    from pyfastcdc import FastCDC

    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - text
        for chunk in FastCDC(avg_size=CHUNK_BYTES).cut_stream(file):
            beat()
            yield chunk.offset, chunk.length, blake3(chunk.data).digest()


def _joined(stretches: Iterable[Stretch]) -> Iterator[Stretch]:
    last: Stretch | None = None
    for each in stretches:
        if last is None:
            last = each
        elif (last.first is None) == (each.first is None) and (
            last.first is None or last.first + last.size == each.first
        ):
            last = Stretch(last.at, last.size + each.size, last.first)
        else:
            yield last
            last = each
    if last is not None:
        yield last
