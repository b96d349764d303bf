"""Keeps a replica's lines, in their order, until the store service has them."""

from __future__ import annotations

import os
import tempfile
import threading

MOST_BYTES = 256 << 20
COMPACT_BYTES = 16 << 20
_PIECE_BYTES = 1 << 20


class Spool:
    """A queue of lines in a file without a name, so that they take no memory and go with the process.

    One thread adds, another takes. Where there is no more room, who adds waits for a service that takes
    them; while it is away, or in a hurry, no writer waits: what comes then is left out, and a line says how much.

    :param folder: on which disk.
    """

    def __init__(self, folder: str, *, most_bytes: int = MOST_BYTES) -> None:
        with tempfile.TemporaryFile(dir=folder) as file:
            self._file = os.dup(file.fileno())  # as long as the process lives
        self._most = most_bytes
        self._first = 0  # where in the stream the file begins; up to `_held` the service has it
        self._held = self._end = 0
        self._left_out = 0
        self._away = self._hurried = self._closed = False
        self._changed = threading.Condition()  # of an RLock: a signal's handler may come in between

    def add(self, lines: bytes) -> None:
        """Take in whole lines."""
        with self._changed:
            self._changed.wait_for(lambda: self._away or self._hurried or self._has_room(lines))
            note = _note(self._left_out) if self._left_out else b""
            if self._has_room(lines) and self._write(note + lines):
                self._left_out = 0
            else:
                self._left_out += len(lines)
            self._changed.notify_all()

    def hurry(self) -> None:
        """End all waits for room, this one's and later ones; a signal's handler may call it."""
        with self._changed:
            self._hurried = True
            self._changed.notify_all()

    def close(self) -> None:
        """Nothing is added any more."""
        with self._changed:
            if self._left_out and self._write(_note(self._left_out)):
                self._left_out = 0
            self._closed = True
            self._changed.notify_all()

    def head(self, most_bytes: int) -> tuple[int, bytes]:
        """Wait for the first lines that the service lacks; return where they begin, and at most so much.

        :returns: nothing once it is closed and empty.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._end > self._held or self._closed)
            size = min(most_bytes, self._end - self._held)
            data = os.pread(self._file, size, self._held - self._first)
            return self._held, data[: data.rfind(b"\n") + 1] or data

    def stall(self) -> None:
        """The service is away, until it has been found to hold more."""
        with self._changed:
            self._away = True
            self._changed.notify_all()

    def drop(self, held: int) -> None:
        """The service has the first `held` bytes of the stream."""
        with self._changed:
            self._away = False
            self._held = min(max(self._held, held), self._end)
            if self._held == self._end:
                os.truncate(self._file, 0)
                self._first = self._end
            elif self._held - self._first > max(COMPACT_BYTES, self._end - self._held):
                self._compact()
            self._changed.notify_all()

    @property
    def waiting(self) -> int:
        """How many bytes the service lacks."""
        with self._changed:
            return self._end - self._held

    def _has_room(self, lines: bytes) -> bool:
        return self._end == self._held or self._end - self._held + len(lines) <= self._most

    def _write(self, data: bytes) -> bool:
        """Add all of it or nothing."""
        view, at = memoryview(data), self._end - self._first
        try:
            while view:
                count = os.pwrite(self._file, view, at)
                view, at = view[count:], at + count
        except OSError:  # the disk is full; what was written of it is written over
            return False
        self._end += len(data)
        return True

    def _compact(self) -> None:
        """Move what is left to the file's beginning; there is room for it before where it lies."""
        source, target = self._held - self._first, 0
        while data := os.pread(self._file, _PIECE_BYTES, source):
            os.pwrite(self._file, data, target)
            source, target = source + len(data), target + len(data)
        os.truncate(self._file, target)
        self._first = self._held


def _note(count: int) -> bytes:
    return (
        b"[muster] %d bytes of lines are left out here, which the node's own log has: "
        b"the store service was away, and there was no room to keep them\n" % count
    )
