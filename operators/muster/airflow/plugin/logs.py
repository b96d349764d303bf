"""The log of a job: its end, what comes, the lines that hold a text, or all of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from muster.core.text import as_shown
from muster.volumes.protocols import Ledger

PART_BYTES = 128 << 10
PIECE_BYTES = 1 << 20
MOST_FOUND = 500
MOST_SEARCHED = 256 << 20

_RANK = re.compile(r"\[rank (\d+)\]")


def part(ledger: Ledger, job_id: str, *, after: int | None) -> dict[str, Any]:
    """Return part of a job's log: its end, or the part after byte `after`.

    :return: the text, the byte after it, the byte before which lines were left out, and the length.
    """
    size = ledger.log_bytes(job_id)
    start = max(0, size - PART_BYTES) if after is None else min(after, size)
    data, end = ledger.read(job_id, after=start, limit_bytes=PART_BYTES)
    if after is None and start:  # it begins in the middle of a line
        _, _, data = data.partition(b"\n")
    return {
        "text": _text(data),
        "next": end,
        "skipped_bytes": end - len(data) if after is None else 0,
        "bytes": size,
    }


def found(ledger: Ledger, job_id: str, *, text: str, rank: int | None) -> dict[str, Any]:
    """Return the last lines of the whole log that hold `text`, in any case, and come from a rank.

    :return: at most 500 lines, the number of all, and whether the log was too long to search all of it.
    """
    wanted, lines, total, searched = text.lower(), list[str](), 0, 0
    for piece in pieces(ledger, job_id):
        for line in _text(piece).splitlines():
            if wanted in line.lower() and (rank is None or _is_of(line, rank)):
                total += 1
                lines.append(line)
        del lines[:-MOST_FOUND]
        searched += len(piece)
        if searched >= MOST_SEARCHED:
            break
    return {"lines": lines, "total": total, "complete": searched < MOST_SEARCHED}


def pieces(ledger: Ledger, job_id: str) -> Iterator[bytes]:
    """Yield the whole log, as it was written, in pieces of whole lines."""
    after = 0
    while True:
        data, after = ledger.read(job_id, after=after, limit_bytes=PIECE_BYTES)
        if not data:
            return
        yield data


def _is_of(line: str, rank: int) -> bool:
    said = _RANK.match(line)
    return said is not None and int(said[1]) == rank


def _text(data: bytes) -> str:
    return as_shown(data.decode("utf-8", "replace").replace("\r\n", "\n"))
