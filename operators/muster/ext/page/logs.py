"""The log of a job: its end, what comes, the lines that hold a text, or all of it; each line with its time."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any

from muster.core.text import as_shown
from muster.volumes.base import LogTime
from muster.volumes.protocols import Ledger

_PART_BYTES = 128 << 10
PIECE_BYTES = 1 << 20
MOST_FOUND = 500
_MOST_SEARCHED = 256 << 20

_RANK = re.compile(r"\[rank (\d+)\]")


def part(ledger: Ledger, job_id: str, *, after: int | None) -> dict[str, Any]:
    """Return part of a job's log: its end, or the part after byte `after`.

    :return: the text, ``times`` as pairs of a line's number and when it and those after it were stored, the byte after
        the text, the byte before which lines were left out, and the length.
    """
    size = ledger.log_bytes(job_id)
    start = max(0, size - _PART_BYTES) if after is None else min(after, size)
    data, end = ledger.read(job_id, after=start, limit_bytes=_PART_BYTES)
    if after is None and start:  # it begins in the middle of a line
        _, _, data = data.partition(b"\n")
    begin = end - len(data)
    return {
        "text": "\n".join(line for _, line in _lines(data)) + "\n" * data.endswith(b"\n"),
        "times": _times(ledger, job_id, data, begin=begin),
        "next": end,
        "skipped_bytes": begin if after is None else 0,
        "bytes": size,
    }


def found(ledger: Ledger, job_id: str, *, text: str, rank: int | None) -> dict[str, Any]:
    """Return the last lines of the whole log that hold `text`, in any case, and come from a rank.

    :return: at most 500 lines, each with when it was stored (None where that is not known); the number of all, and
        whether the log was too long to search all of it.
    """
    lines, total, searched = list[tuple[int, str]](), 0, 0
    for piece in pieces(ledger, job_id):
        mine = [(searched + at, line) for at, line in _lines(piece) if _is_wanted(line, text, rank)]
        total += len(mine)
        lines = [*lines, *mine][-MOST_FOUND:]
        searched += len(piece)
        if searched >= _MOST_SEARCHED:
            break
    first = lines[0][0] if lines else 0
    times = ledger.log_times(job_id, after=first, before=searched) if lines else []
    return {
        "lines": [line for _, line in lines],
        "times": [_time_of(times, at) for at, _ in lines],
        "total": total,
        "complete": searched < _MOST_SEARCHED,
    }


def chosen(ledger: Ledger, job_id: str, *, text: str, rank: int | None, timed: bool) -> Iterator[bytes]:
    """Yield the lines of the whole log that hold `text` and come from a rank, in pieces.

    :param timed: begin each line with when it was stored, in UTC.
    """
    if not text and rank is None and not timed:
        yield from pieces(ledger, job_id)
        return
    after = 0
    for piece in pieces(ledger, job_id):
        times = ledger.log_times(job_id, after=after, before=after + len(piece)) if timed else []
        mine = ((after + at, line) for at, line in _lines(piece) if _is_wanted(line, text, rank))
        yield "".join(
            f"{_utc(_time_of(times, at))} {line}\n" if timed else f"{line}\n" for at, line in mine
        ).encode()
        after += len(piece)


def pieces(ledger: Ledger, job_id: str) -> Iterator[bytes]:
    """Yield the whole log, as it was written, in pieces of whole lines."""
    after = 0
    while True:
        data, after = ledger.read(job_id, after=after, limit_bytes=PIECE_BYTES)
        if not data:
            return
        yield data


def _times(ledger: Ledger, job_id: str, data: bytes, *, begin: int) -> list[tuple[int, float]]:
    """Return the number of each line that has another time than the line before it, and that time."""
    if not data:
        return []
    times = ledger.log_times(job_id, after=begin, before=begin + len(data))
    return [(data.count(b"\n", 0, max(0, each.offset - begin)), each.at) for each in times]


def _time_of(times: Sequence[LogTime], offset: int) -> float | None:
    place = bisect_right(times, offset, key=lambda each: each.offset)
    return times[place - 1].at if place else None


def _utc(at: float | None) -> str:
    return "-" if at is None else datetime.fromtimestamp(at, tz=UTC).isoformat(timespec="seconds")


def _lines(piece: bytes) -> Iterator[tuple[int, str]]:
    """Yield each line with its offset in the piece."""
    raw = piece.removesuffix(b"\n").split(b"\n")
    texts = _text(b"\n".join(raw)).split("\n")
    if len(texts) != len(raw):  # an escape sequence that does not end took lines with it
        texts = [_text(line) for line in raw]
    return zip(accumulate((len(line) + 1 for line in raw), initial=0), texts, strict=False)


def _is_wanted(line: str, text: str, rank: int | None) -> bool:
    return text.lower() in line.lower() and (rank is None or _is_of(line, rank))


def _is_of(line: str, rank: int) -> bool:
    said = _RANK.match(line)
    return said is not None and int(said[1]) == rank


def _text(data: bytes) -> str:
    return as_shown(data.decode("utf-8", "replace").replace("\r\n", "\n"))
