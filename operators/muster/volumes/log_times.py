"""When the lines of a job's log were stored: ``log.times``, beside the log.

Each record has an offset in the log and a time: the bytes from there on, up to the next record's, were stored at that
time, or at most a second later. The log itself is as its ranks wrote it. A record that a kill cut is overwritten, and a
disk that takes no record fails no job: the lines then have the time of those before them.
"""

from __future__ import annotations

import struct
import time
from bisect import bisect_left, bisect_right
from pathlib import Path

from muster.volumes.base import LogTime

NAME = "log.times"
EVERY_SECONDS = 1.0
MOST = 1 << 16
"""The number of records, one each second: 18 hours of a log that grows without a pause. Then comes one each minute."""

_LATER_SECONDS = 60.0
_RECORD = struct.Struct("<Qd")


def note_time(folder: Path, *, before: int, now: float | None = None) -> None:
    """Record that lines were just stored behind the log's first `before` bytes; use it under the log's lock.

    :param folder: the job's, which holds the log.
    :param now: seconds since the epoch.
    """
    now = time.time() if now is None else now
    try:
        with (folder / NAME).open("ab+", buffering=0) as file:
            records = file.seek(0, 2) // _RECORD.size
            if records:
                file.seek((records - 1) * _RECORD.size)
                _, last = _RECORD.unpack(file.read(_RECORD.size))
                if 0 <= now - last < (EVERY_SECONDS if records < MOST else _LATER_SECONDS):
                    return
            file.truncate(records * _RECORD.size)
            file.write(_RECORD.pack(before, now))
    except OSError:  # the disk is full: the lines are stored, which counts
        return


def read_times(folder: Path, *, after: int = 0, before: int | None = None) -> list[LogTime]:
    """Return the times of a part of a log; see :meth:`muster.volumes.protocols.Ledger.log_times`."""
    try:
        data = (folder / NAME).read_bytes()
    except FileNotFoundError:
        return []
    records = range(len(data) // _RECORD.size)

    def record(number: int) -> LogTime:
        offset, at = _RECORD.unpack_from(data, number * _RECORD.size)
        return LogTime(offset=offset, at=at)

    first = max(0, bisect_right(records, after, key=lambda number: record(number).offset) - 1)
    last = len(records)
    if before is not None:
        last = bisect_left(records, before, key=lambda number: record(number).offset)
    return [record(number) for number in records[first:last]]
