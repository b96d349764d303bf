"""What a worker prints: its lines go to the server's log under its revision's name, so many bytes a second at most.

A worker that prints more is slowed down, since its pipe is read slower, and what is left out is counted. So it can
neither fill the disk nor keep the front from answering.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

_BYTES_A_SECOND = 32 << 10
BURST_BYTES = 256 << 10
PIECE_BYTES = 64 << 10
PAUSE_SECONDS = 0.01
_TOLD_SECONDS = 1.0  # after which what was left out is told, if nothing more is printed
LINE_BYTES = 4 << 10


class Said:
    """Reads a worker's pipe.

    :param write: takes whole lines, with their ends.
    """

    def __init__(self, pipe: int, prefix: str, write: Callable[[bytes], None]) -> None:
        os.set_blocking(pipe, False)
        self._loop = asyncio.get_running_loop()
        self._pipe = pipe
        self._prefix = prefix.encode()
        self._write = write
        self._rest = self._last = b""
        self._left_out = 0
        self._may = float(BURST_BYTES)
        self._at = self._loop.time()
        self._resume: asyncio.TimerHandle | None = None
        self._tells: asyncio.TimerHandle | None = None
        self._loop.add_reader(pipe, self._read)

    @property
    def last_line(self) -> str:
        """The last line that says something."""
        lines = (self._last + self._rest).decode(errors="replace").splitlines()
        return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")

    def forget(self) -> None:
        """Have what was said until now count no more as the last line."""
        self._last = b""

    def end(self) -> None:
        """Take what is in the pipe still, and close it."""
        if self._pipe < 0:
            return
        if self._resume:
            self._resume.cancel()
        while self._take():
            pass
        self._put(b"\n" if self._rest else b"")
        self._confess()
        self._close()

    def _read(self) -> None:
        if self._take() and self._may < 0:
            self._loop.remove_reader(self._pipe)
            self._resume = self._loop.call_later(PAUSE_SECONDS, self._go_on)

    def _go_on(self) -> None:
        if self._pipe >= 0:
            self._loop.add_reader(self._pipe, self._read)

    def _take(self) -> bool:
        try:
            data = os.read(self._pipe, PIECE_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._loop.remove_reader(self._pipe)
            return False
        self._put(data)
        return True

    def _put(self, data: bytes) -> None:
        now = self._loop.time()
        self._may = min(self._may + (now - self._at) * _BYTES_A_SECOND, BURST_BYTES)
        self._at = now
        lines, cut, rest = (self._rest + data).rpartition(b"\n")
        if len(rest) > LINE_BYTES:
            lines, cut, rest = lines + cut + rest, b"\n", b""
        self._rest = rest
        if not cut:
            return
        self._last = lines[-LINE_BYTES:] + cut
        if self._may < 0:
            self._left_out += len(lines)
            self._tells = self._tells or self._loop.call_later(_TOLD_SECONDS, self._confess)
            return
        self._may -= len(lines)
        self._confess()
        self._write(b"".join(self._prefix + line[:LINE_BYTES] + b"\n" for line in lines.split(b"\n")))

    def _confess(self) -> None:
        if self._tells:
            self._tells.cancel()
            self._tells = None
        if self._left_out:
            self._write(self._prefix + b"... %d bytes left out: it prints too much\n" % self._left_out)
            self._left_out = 0

    def _close(self) -> None:
        self._loop.remove_reader(self._pipe)
        os.close(self._pipe)
        self._pipe = -1
