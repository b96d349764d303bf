"""Sends a replica's lines to the store service, in a thread of its own: neither ranks nor worker wait for it."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable

from muster.worker.store import Stale, StoreService

SPACING_SECONDS = 0.5  # between two requests, unless enough lines wait to fill one
_BATCH_BYTES = 1 << 20
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS, _GROWTH = 0.1, 1.0, 2.0
MOST_BYTES = 256 << 20
COMPACT_BYTES = 16 << 20
_PIECE_BYTES = 1 << 20


class Courier:
    """Sends the lines in a spool to the service, each byte once, however often either of them fails.

    :param wake: called, in the thread, when it can send nothing more.
    """

    def __init__(self, service: StoreService, spool: LineSpool, *, wake: Callable[[], None]) -> None:
        self.stale = ""
        """Why the service no longer accepts this replica; empty while it does."""
        self.refused = ""
        """Why the service takes no lines; empty while it does."""
        self._service, self._spool, self._wake = service, spool, wake
        self._hurry = threading.Event()
        self._pause = _FIRST_PAUSE_SECONDS
        self._thread = threading.Thread(target=self._run, name="courier", daemon=True)

    def start(self) -> None:
        """Start the thread; the process must not fork after this."""
        self._thread.start()

    def finish(self, *, seconds: float) -> bool:
        """Send the remaining lines for at most `seconds`; return whether the service has all."""
        self._spool.close()
        self._hurry.set()
        self._thread.join(max(0.0, seconds))
        return not self._spool.waiting

    def _run(self) -> None:
        try:
            while self._bring():
                pass
        except Stale as error:
            self.stale = str(error)
        except Exception as error:  # no error in sending lines may end a replica
            self.refused = str(error) or type(error).__name__
        finally:
            self._spool.stall()
            self._wake()

    def _bring(self) -> bool:
        """Send the next lines; return whether there may be more."""
        offset, lines = self._spool.head(_BATCH_BYTES)
        if not lines:
            return False
        try:
            self._spool.drop(self._service.send(lines, offset=offset))
        except OSError:
            self._spool.stall()
            if self._hurry.is_set():
                time.sleep(min(self._pause, SPACING_SECONDS))
            else:
                self._hurry.wait(self._pause)
            self._pause = min(_GROWTH * self._pause, _LONGEST_PAUSE_SECONDS)
        else:
            self._pause = _FIRST_PAUSE_SECONDS
            if self._spool.waiting < _BATCH_BYTES:
                self._hurry.wait(SPACING_SECONDS)
        return True


class LineSpool:
    """A queue of lines in an unnamed file, so that they take no memory and vanish with the process.

    One thread adds, another takes. When it is full, :meth:`add` waits for a service that takes lines. While
    the service is away, or in a hurry, it does not wait: new lines are left out, and one line says how many
    bytes.

    :param folder: on the disk to use.
    """

    def __init__(self, folder: str, *, most_bytes: int = MOST_BYTES) -> None:
        with tempfile.TemporaryFile(dir=folder) as file:
            self._file = os.dup(file.fileno())  # open as long as the process lives
        self._most = most_bytes
        self._first = 0  # the file's offset in the stream; the service has all up to `_held`
        self._held = self._end = 0
        self._left_out = 0
        self._away = self._hurried = self._closed = False
        self._changed = threading.Condition()  # with an RLock: a signal handler may interrupt

    def add(self, lines: bytes) -> None:
        """Add whole lines."""
        with self._changed:
            self._changed.wait_for(lambda: self._away or self._hurried or self._has_room(lines))
            note = _note(self._left_out) if self._left_out else b""
            if self._has_room(lines) and self._write(note + lines):
                self._left_out = 0
            else:
                self._left_out += len(lines)
            self._changed.notify_all()

    def hurry(self) -> None:
        """End all waits for room, now and later; a signal handler may call it."""
        with self._changed:
            self._hurried = True
            self._changed.notify_all()

    def close(self) -> None:
        """Close it: no more lines are added."""
        with self._changed:
            if self._left_out and self._write(_note(self._left_out)):
                self._left_out = 0
            self._closed = True
            self._changed.notify_all()

    def head(self, most_bytes: int) -> tuple[int, bytes]:
        """Wait for the first lines that the service lacks; return their offset and at most `most_bytes` of them.

        :returns: no bytes once it is closed and empty.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._end > self._held or self._closed)
            size = min(most_bytes, self._end - self._held)
            data = os.pread(self._file, size, self._held - self._first)
            return self._held, data[: data.rfind(b"\n") + 1] or data

    def stall(self) -> None:
        """Note that the service is away, until :meth:`drop` says that it has more."""
        with self._changed:
            self._away = True
            self._changed.notify_all()

    def drop(self, held: int) -> None:
        """Note that the service has the first `held` bytes of the stream."""
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
        """Bytes that the service lacks."""
        with self._changed:
            return self._end - self._held

    def _has_room(self, lines: bytes) -> bool:
        return self._end == self._held or self._end - self._held + len(lines) <= self._most

    def _write(self, data: bytes) -> bool:
        """Write all of `data` or none; return whether it was written."""
        view, at = memoryview(data), self._end - self._first
        try:
            while view:
                count = os.pwrite(self._file, view, at)
                view, at = view[count:], at + count
        except OSError:  # the disk is full; a partial write is overwritten later
            return False
        self._end += len(data)
        return True

    def _compact(self) -> None:
        """Move the rest to the file's beginning, where there is room for it."""
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
