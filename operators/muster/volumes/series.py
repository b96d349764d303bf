"""What lies beside a job's log in a folder store: ``series``, and ``log.times``, when its lines were stored.

The first line of ``series`` is a snapshot of the series. Each further line holds what a batch of log lines added, and the
log's length after them. So a kill at any moment loses or doubles no point: a half-written line is removed, and the
part of the log that no line covers is read again. The file is rewritten as a snapshot now and then, so it stays below
some megabytes. Readers of series do not read the log.

A job's series outlast its ledger entry beside the commit record, as long as one of its versions has data.

Each record of ``log.times`` has an offset in the log and a time: the bytes from there on, up to the next record's, were stored at that
time, or at most a second later. The log itself is as its ranks wrote it. A record that a kill cut is overwritten, and a
disk that takes no record fails no job: the lines then have the time of those before them.

Two places append to logs, :class:`muster.volumes.ledger.FolderLedger` on one machine and
:class:`muster.volumes.service.journal.Journal` in the store service. Both use this.
"""

from __future__ import annotations

import json
import os
import struct
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from muster.core.errors import Corrupt
from muster.core.series import Folding, Series, has_numbers
from muster.volumes.base import LogTime
from muster.volumes.commit_records import read_commit
from muster.volumes.durability import read_whole, write_whole
from muster.volumes.layout import Layout

NAME = "series"
NOTE_BYTES = 1 << 20
"""So much of a log without numbers is read again after a kill, at most."""

_REREAD_BYTES = 64 << 20
_PIECE_BYTES = 1 << 20
_SHORTEST_BYTES = 64 << 10  # of lines behind the snapshot, before all is written anew


class SeriesFile:
    """The series of one job, for the one process that adds lines to its log; use it under the log's lock.

    :param folder: the job's, which holds the log.
    :param started: returns when the job started, in seconds since the epoch; None where that is unknown yet.
    :param clock: seconds since the epoch.
    """

    def __init__(
        self,
        folder: Path,
        *,
        started: Callable[[], float | None] = lambda: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._path, self._log = folder / NAME, folder / "log"
        self._started, self._clock = started, clock
        self._folding: Folding | None = None
        self._size = self._whole_bytes = self._covered = 0

    def take(self, lines: bytes, *, before: int, after: int) -> None:
        """Add the points of lines that were just appended to the log or left out of it.

        :param before: the log's length before them; `after`: with them.
        """
        if self._folding is None and not has_numbers(lines):
            return
        try:
            folding = self._opened(before)
            told = folding.take(lines, at=self._clock()) if has_numbers(lines) else None
            if told is not None or after > self._covered + NOTE_BYTES:
                self._write(folding, [after, told])
        except OSError:
            # The disk is full: the log has the lines already, and they are read from there next time.
            self._folding = None

    def _opened(self, before: int) -> Folding:
        """Return the series of the file, after repairing what a kill left half done."""
        size = self._path.stat().st_size if self._path.exists() else 0
        if self._folding is None or size != self._size:
            self._folding, self._covered, self._size = self._load()
            if self._covered < before:
                self._read_log(self._folding, before)
        return self._folding

    def _load(self) -> tuple[Folding, int, int]:
        try:
            data = read_whole(self._path)
            folding, covered = _folded(data)
        except (
            FileNotFoundError,
            ValueError,
            KeyError,
            TypeError,
            IndexError,
        ):  # none yet, or a power cut tore it
            return Folding(self._started() or self._clock()), 0, 0
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.truncate(self._path, whole)
        self._whole_bytes = data.index(b"\n") + 1
        return folding, covered, whole

    def _read_log(self, folding: Folding, end: int) -> None:
        """Add points of log lines that a killed process had not added; their times are lost."""
        for lines in _pieces(self._log, max(self._covered, end - _REREAD_BYTES), end):
            folding.take(lines, at=self._clock())
        self._write_anew(folding, end)

    def _write(self, folding: Folding, record: list[Any]) -> None:
        line = _line(record)
        if not self._size or self._size + len(line) > self._whole_bytes + max(
            _SHORTEST_BYTES, 2 * self._whole_bytes
        ):
            self._write_anew(folding, record[0])
            return
        with self._path.open("ab", buffering=0) as file:
            written = file.write(line)
        if written != len(line):
            raise OSError("the disk is full")
        self._size += written
        self._covered = record[0]

    def _write_anew(self, folding: Folding, covered: int) -> None:
        line = _line({"log": covered, **folding.snapshot()})
        write_whole(self._path, line, durable=False)
        self._size = self._whole_bytes = len(line)
        self._covered = covered


def read_series(path: Path) -> Series:
    """Return the series in a file; none where it is missing. :raises Corrupt: it cannot be read."""
    try:
        return _folded(read_whole(path))[0].series()
    except FileNotFoundError:
        return Series()
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise Corrupt(
            f"{path} cannot be read, it is damaged: delete it; the job's log still has what its ranks printed"
        ) from error


def keep_series(layout: Layout, job_id: str) -> None:
    """Keep the series of a job whose ledger entry is about to be deleted, if one of its versions has data."""
    with suppress(FileNotFoundError):  # it has none
        if _has_data(layout, job_id):
            write_whole(layout.series(job_id), read_whole(layout.job(job_id) / NAME), durable=False)


def sweep_series(layout: Layout) -> None:
    """Delete kept series of jobs whose versions have lost their data to gc."""
    for path in (layout.root / "commits").glob("*.series"):
        if not _has_data(layout, path.stem):
            path.unlink(missing_ok=True)


def _has_data(layout: Layout, job_id: str) -> bool:
    try:
        commit = read_commit(layout, job_id)
    except Corrupt:
        return True  # unknown, and fsck reports it
    return commit is not None and any((layout.version(*place) / "data").is_dir() for place in commit.places)


def _folded(data: bytes) -> tuple[Folding, int]:
    """Return the series in the whole lines of a file, and the length of the log that they cover."""
    first, *further = data[: data.rfind(b"\n") + 1].splitlines()
    document = json.loads(first)
    folding, covered = Folding.restored(document), int(document["log"])
    for line in further:
        covered, told = json.loads(line)
        if told is not None:
            folding.replay(told)
    return folding, covered


def _line(document: object) -> bytes:
    return json.dumps(document, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def _pieces(path: Path, start: int, end: int) -> Iterator[bytes]:
    """Yield whole lines between two offsets of a log; a line longer than a piece is left out."""
    with path.open("rb") as log:
        log.seek(start)
        rest = b""
        while start < end and (data := log.read(min(_PIECE_BYTES, end - start))):
            start += len(data)
            whole, newline, rest = (rest + data).rpartition(b"\n")
            yield whole + newline


TIMES = "log.times"
EVERY_SECONDS = 1.0
MOST_TIMES = 1 << 16
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
        with (folder / TIMES).open("ab+", buffering=0) as file:
            records = file.seek(0, 2) // _RECORD.size
            if records:
                file.seek((records - 1) * _RECORD.size)
                _, last = _RECORD.unpack(file.read(_RECORD.size))
                if 0 <= now - last < (EVERY_SECONDS if records < MOST_TIMES else _LATER_SECONDS):
                    return
            file.truncate(records * _RECORD.size)
            file.write(_RECORD.pack(before, now))
    except OSError:  # the disk is full: the lines are stored, which counts
        return


def read_times(folder: Path, *, after: int = 0, before: int | None = None) -> list[LogTime]:
    """Return the times of a part of a log; see :meth:`muster.volumes.protocols.Ledger.log_times`."""
    try:
        data = (folder / TIMES).read_bytes()
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
