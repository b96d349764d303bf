"""A job's log with many writers: every byte is stored once, however often it is sent.

Each writer counts the bytes of its own stream and sends lines with their offset; bytes that are there
already are skipped. Before bytes are added to ``log``, a line in ``log.parts`` records them::

    <offset in log> <bytes> <stream> <offset in stream>

So after a kill at any moment the two files together show what was stored. Bytes that were only
partly written are cut back to their last whole line, beyond which no reader can have read, and
the writer, which got no answer, sends the rest again. (A power cut may lose acknowledged lines:
a log is not worth a sync for each line.)

What workers say of their replicas' use is received, and added to the job's series, but not to its log.

Output of ranks is stored up to a limit, so that a rank that prints without end does not fill the disk
that others commit to. Further lines are acknowledged, recorded with no bytes, and counted: the log says
when the limit is reached, and, before lines of others such as a verdict, how many bytes were left out.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from weakref import WeakValueDictionary

from muster.core.errors import SpecError
from muster.core.holding import write_all
from muster.core.series import segments
from muster.volumes.durability import translated, write_whole
from muster.volumes.folder import FolderStore
from muster.volumes.series import SeriesFile, note_time

_FULL = (
    b"[muster] this log is as long as a job's may be: what its ranks print from here on is left out, "
    b"and is in their pods' own logs (kubectl logs) for as long as there are pods\n"
)

_OPEN_JOURNALS = 1024
MOST_RECORDS = 4096
ONCE = "once-"
MOST_ONCE = 256
_ANY = 1 << 63
LEFT_OUT = (
    "muster/left-out"  # a stream without bytes in the log: its offset counts the bytes left out of others
)


class Journal:
    """The log of one job. One object per job, in one process: it relies on its memory.

    :param series: of the same job; they are used under this object's lock.
    """

    def __init__(self, folder: Path, *, series: SeriesFile | None = None) -> None:
        self._series = series or SeriesFile(folder)
        self._log, self._parts = folder / "log", folder / "log.parts"
        self._lock = threading.Lock()
        self._received: dict[str, int] | None = None
        self._records, self._most_records = 0, MOST_RECORDS

    def append(self, stream: str, data: bytes, *, offset: int, most_bytes: int | None = None) -> int:
        """Store the new part of `data`, which begins at `offset` of its stream; return how much is stored.

        Where the stream has a gap, which only a power cut of the service causes, a line of the log says so, once.

        :param stream: the writer; a name that begins with ``once-`` is of a single piece.
        :param most_bytes: leave out bytes that would make the log longer than this.
        :raises StoreError: the disk is full or failing; bytes that were not stored may be sent again.
        """
        if not stream.isprintable() or " " in stream or offset < 0:
            raise SpecError(f"stream {stream!r:.80} at {offset}: need a name without spaces, and 0 or more")
        with self._lock, translated(f"write the log {self._log}"):
            received = self._load()
            held = received.get(stream, 0)
            if offset > held:
                told = b"[muster] %d bytes of %s were lost\n" % (offset - held, stream.encode())
                if f"{ONCE}gap-{stream}" not in received and self._size() + len(told) <= (most_bytes or _ANY):
                    self._write(f"{ONCE}gap-{stream}", 0, told)
                held = received[stream] = offset
            data = data[held - offset :]
            before = self._size()
            if most_bytes is None:
                self._tell(received)
            elif data and before + len(data) > most_bytes:
                self._leave_out(received, stream, held + len(data), count=len(data))
                self._series.take(data, before=before, after=self._size())
                return held + len(data)
            for part, logged in segments(data):
                if logged:
                    self._write(stream, held, part)
                else:
                    self._note(received, {stream: held + len(part)})
                held += len(part)
            self._series.take(data, before=before, after=self._size())
            return received.get(stream, held)

    def tell_left_out(self) -> None:
        """Write into the log how much was left out of it, if anything was."""
        with self._lock, translated(f"write the log {self._log}"):
            self._tell(self._load())

    def _tell(self, received: Mapping[str, int]) -> None:
        count = received.get(LEFT_OUT, 0)
        once = f"{ONCE}left-out-{count}"
        if count and once not in received:
            self._write(
                once, 0, b"[muster] %d bytes of what ranks printed are left out of this log\n" % count
            )

    def _leave_out(self, received: dict[str, int], stream: str, held: int, *, count: int) -> None:
        """Record bytes of a stream as received without writing them."""
        if LEFT_OUT not in received:
            self._write(f"{ONCE}full", 0, _FULL)
        self._note(received, {stream: held, LEFT_OUT: received.get(LEFT_OUT, 0) + count})

    def _note(self, received: dict[str, int], new: Mapping[str, int]) -> None:
        """Record how much of these streams is received, without adding to the log."""
        size = self._size()
        with self._parts.open("ab", buffering=0) as parts:
            try:
                write_all(
                    parts.fileno(), "".join(f"{size} 0 {name} {at}\n" for name, at in new.items()).encode()
                )
            except BaseException:
                self._received = None  # only the file is right now
                raise
        received.update(new)
        self._count_records(len(new))

    def _size(self) -> int:
        return self._log.stat().st_size if self._log.exists() else 0

    def _write(self, stream: str, held: int, data: bytes) -> None:
        if not data:
            return
        assert self._received is not None
        with self._parts.open("ab", buffering=0) as parts, self._log.open("ab", buffering=0) as log:
            before = os.fstat(log.fileno()).st_size
            try:
                write_all(parts.fileno(), f"{before} {len(data)} {stream} {held}\n".encode())
                write_all(log.fileno(), data if data.endswith(b"\n") else data + b"\n")
            except BaseException:
                self._received = None  # only the files are right now
                raise
        note_time(self._log.parent, before=before)
        self._received[stream] = held + len(data)
        self._count_records(1)

    def _count_records(self, more: int) -> None:
        self._records += more
        if self._records > self._most_records:
            self._compact()

    def _load(self) -> dict[str, int]:
        """Return how much of each stream is stored, after mending what a kill or a full disk left half done."""
        if self._received is None:
            size = self._size()
            records = list(_records(self._parts))
            ends = [start for start, _, _, _ in records[1:]]
            if records:
                size = self._cut(size, *records[-1][:2])
                ends.append(size)
            received: dict[str, int] = {}
            for (start, length, stream, offset), end in zip(records, ends, strict=True):
                received[stream] = offset + max(0, min(length, end - start))
            self._records = len(records)
            self._end_line(size)
            self._received = received
        return self._received

    def _cut(self, size: int, start: int, length: int) -> int:
        """Cut back the partial line of a record whose write a kill interrupted."""
        if not start <= size < start + length:
            return size
        with self._log.open("rb+", buffering=0) as log:
            log.seek(start)
            size = start + log.read(size - start).rfind(b"\n") + 1
            log.truncate(size)
        return size

    def _end_line(self, size: int) -> None:
        if size:
            with self._log.open("rb+", buffering=0) as log:
                log.seek(size - 1)
                if log.read(1) != b"\n":
                    log.write(b"\n")

    def _compact(self) -> None:
        assert self._received is not None
        once = [stream for stream in self._received if stream.startswith(ONCE)]
        for stream in once[:-MOST_ONCE]:
            del self._received[stream]
        size = self._log.stat().st_size
        lines = [f"{size} 0 {stream} {held}\n" for stream, held in self._received.items()]
        write_whole(self._parts, "".join(lines), durable=False)
        self._records, self._most_records = len(lines), MOST_RECORDS + 4 * len(lines)


class Journals:
    """The journals of all jobs of a store; the last ones opened stay in memory."""

    def __init__(self, store: FolderStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._known: WeakValueDictionary[str, Journal] = WeakValueDictionary()
        self._recent: deque[Journal] = deque(maxlen=_OPEN_JOURNALS)

    def of(self, job_id: str) -> Journal:
        """Return the journal of one job, the same object while one is in use.

        :raises NotFound: no such job.
        """
        folder = self._store.ledger.check(job_id)
        with self._lock:
            journal = self._known.get(job_id)
            if journal is None:
                series = self._store.ledger.series_file(job_id)
                journal = self._known[job_id] = Journal(folder, series=series)
                self._recent.append(journal)
            return journal


def _records(path: Path) -> Iterator[tuple[int, int, str, int]]:
    """Read the records; drop a last one that a kill cut, since no bytes followed it."""
    if not path.exists():
        return
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        os.truncate(path, whole)
    for line in data[:whole].decode().splitlines():
        start, length, stream, offset = line.split(" ")
        yield int(start), int(length), stream, int(offset)
