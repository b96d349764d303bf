"""One replica of a gang: its worker's process, the lines it says, and how it ended."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from muster.backends.local.limits import MemoryLimit, Overrun
from muster.backends.local.spawn import Worker
from muster.core.errors import SpecError
from muster.core.replica import Replica, Report
from muster.core.wire import dumps, loads

_READ_BYTES = 64 * 1024
# A worker's lines are shorter: 64 KiB, thrice as much where all of it is no text. What is longer is not a
# worker's and is cut, and what follows the cut would pass for a line of muster's own.
_LONGEST_BYTES = 256 * 1024
_READS = 16  # then the other replicas have their turn


@dataclass
class Member:
    """One replica: what it is, its worker's process and what is known of its end."""

    replica: Replica
    worker: Worker
    limit: MemoryLimit
    watch: int = -1
    partial: bytes = b""
    silent: bool = False
    last_line: str = ""
    code: int | None = None
    ended_at: float = 0.0
    stopped: bool = False
    overrun: Overrun | None = None

    @property
    def name(self) -> str:
        """Its role and index, as its files have it."""
        return f"{self.replica.role}-{self.replica.index}"

    @property
    def running(self) -> bool:
        """Whether its worker has not ended yet."""
        return self.code is None

    def begin(self) -> None:
        """Put the worker under its limit and tell it what it is; it starts its ranks then."""
        self.watch = os.pidfd_open(self.worker.pid)
        self.limit.enter(self.worker.pid)
        with suppress(BrokenPipeError), os.fdopen(self.worker.tell, "wb") as pipe:  # its end is seen later
            pipe.write(dumps(self.replica).encode())

    def lines(self) -> bytes:
        """Return the whole lines that have come; at the worker's end also what is left of one."""
        chunks = [self.partial]
        with suppress(BlockingIOError):
            for _ in range(_READS):
                chunks.append(os.read(self.worker.output, _READ_BYTES))
                self.silent = not chunks[-1]
        whole, newline, self.partial = b"".join(chunks).rpartition(b"\n")
        if self.partial and (not self.running or len(self.partial) > _LONGEST_BYTES):
            whole, newline, self.partial = whole + newline + self.partial, b"\n", b""
        if whole:
            self.last_line = whole.rpartition(b"\n")[2].decode("utf-8", "replace")
        return whole + newline

    def reap(self) -> None:
        """Take the worker's exit code."""
        _, status = os.waitpid(self.worker.pid, 0)
        self.code = os.waitstatus_to_exitcode(status)
        self.ended_at = time.time()

    def signal(self, number: int) -> None:
        """Send a signal to the worker if it still runs."""
        if self.running:
            self.stopped = True
            signal.pidfd_send_signal(self.watch, number)

    def report(self) -> Report | None:
        """Return what the worker said of its end, or None if it could not."""
        try:
            return loads(Report, Path(self.replica.report).read_bytes())
        except (FileNotFoundError, SpecError):
            return None

    def close(self) -> None:
        """Give back what the kernel holds for it, once nothing of it runs any more."""
        os.close(self.watch)
        os.close(self.worker.output)
        self.limit.close()
