"""A process for tasks, a fork of the run's: what a task says and how it ended come back over pipes.

The fork has what the run has imported, and keeps what its first task made for the next one. It dies with the run, hears of a
stop by SIGTERM, and leaves as Airflow's own task process does: at once, without what is registered with :mod:`atexit`.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from io import BufferedWriter, FileIO, TextIOWrapper
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, TextIO

from muster.airflow.attempts.watcher import LineListener
from muster.airflow.upstream import internals
from muster.core.forking import do_and_end
from muster.core.linux import die_with
from muster.core.locks import leave_to_parent
from muster.core.status import JobStatus
from muster.core.wire import dumps, loads

_CHUNK_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class TaskOutcome:
    """How a task ended.

    :param arguments: what distinguishes an instance of a mapped task, as plain values.
    :param message: why it failed, or skipped itself, if it did.
    """

    arguments: Mapping[str, Any] = field(default_factory=dict)
    message: str = ""


Work = Callable[[Any, LineListener], TaskOutcome]


class TaskProcess:
    """A fork of this process, which must have no database open; it runs one task at a time.

    :param work: runs a task in the fork; it is given what :meth:`start` was given, and the listener to tell.
    :ivar has_job: whether its task has told of a job.
    :param captured: whether what a task prints itself is told to the listener; if not, it goes where this process
        prints.
    :param stop: called in the fork when it is asked to end and no task of Airflow hears that.
    """

    def __init__(self, work: Work, *, captured: bool, stop: Callable[[], None]) -> None:
        self.outcome: TaskOutcome | None = None
        self.has_job = False
        self._asked_at = math.inf
        self._status: int | None = None
        self._label = ""
        self._pipe, pipe = Pipe()
        self._printed = _Printed() if captured else None
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            do_and_end(partial(_begin, work, pipe, self._printed, parent, stop), registered=False)
        pipe.close()
        if self._printed is not None:
            self._printed.keep_reading()
        self._ended = os.pidfd_open(self._pid)

    def start(self, order: Any, *, label: str) -> None:
        """Have it run a task; it runs none now.

        :param order: goes to the work, pickled.
        :param label: what people call the task; what it prints itself is told under this name.
        """
        self.outcome, self._label = None, label
        self.has_job, self._asked_at = False, math.inf
        with suppress(BrokenPipeError):  # it was lost meanwhile, which :meth:`hear` sees
            self._pipe.send(order)

    @property
    def handles(self) -> list[int | Connection]:
        """What can be read when it has something to say, or has ended."""
        printed = [] if self._printed is None else self._printed.handles
        return [self._ended, *([] if self._pipe.closed else [self._pipe]), *printed]

    @property
    def alive(self) -> bool:
        """Whether it can run another task."""
        return self._status is None

    @property
    def how(self) -> str:
        """How it ended: ``ended with exit code 3``, ``was ended by SIGKILL``."""
        code = os.waitstatus_to_exitcode(self._status or 0)
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    def stop(self) -> float:
        """Ask it to end its task, as Airflow asks a task, unless that was done; return for how many seconds it was asked."""
        if self.alive and self._asked_at == math.inf:
            self._asked_at = time.monotonic()
            signal.pidfd_send_signal(self._ended, signal.SIGTERM)
        return time.monotonic() - self._asked_at

    def kill(self) -> None:
        """End it at once."""
        signal.pidfd_send_signal(self._ended, signal.SIGKILL)

    def leave(self) -> None:
        """Have it end, with no task in it, and wait for that."""
        if self.alive:
            self._pipe.close()
            signal.pidfd_send_signal(self._ended, signal.SIGKILL)
            self._close()

    def hear(self, listener: LineListener) -> bool:
        """Pass on what its task has said; return whether that has ended, after its last word."""
        gone = bool(wait([self._ended], 0))
        self._pass_on(listener)
        ended = gone or self.outcome is not None
        if self._printed is not None and (lines := self._printed.read(last=ended)):
            listener.lines(self._label, lines)
        if gone:
            self._close()
        return ended

    def _pass_on(self, listener: LineListener) -> None:
        with suppress(EOFError, ConnectionResetError):  # it has ended
            while not self._pipe.closed and self._pipe.poll():
                what, *told = self._pipe.recv()
                match what:
                    case "lines":
                        listener.lines(*told)
                    case "job":
                        self.has_job = True
                        listener.job(told[0], loads(JobStatus, told[1]))
                    case "outcome":
                        self.outcome = TaskOutcome(**told[0])
            return
        self._pipe.close()

    def _close(self) -> None:
        _, self._status = os.waitpid(self._pid, 0)
        os.close(self._ended)
        self._pipe.close()
        if self._printed is not None:
            self._printed.close()


class _Printed:
    """A pipe for what a task, or a program that it starts, writes to stdout and stderr."""

    def __init__(self) -> None:
        self._end, self._write = os.pipe()
        self._rest = b""
        self._open = True

    @property
    def handles(self) -> list[int]:
        return [self._end] if self._open else []

    def take(self) -> None:
        """Make it this process's stdout and stderr."""
        os.dup2(self._write, 1)
        os.dup2(self._write, 2)
        sys.stdout, sys.stderr = _written_by_line(1), _written_by_line(2)

    def keep_reading(self) -> None:
        """Leave writing to the fork."""
        os.close(self._write)
        os.set_blocking(self._end, False)

    def read(self, *, last: bool) -> list[str]:
        """Return the lines that are whole; with `last` the rest too."""
        with suppress(BlockingIOError):
            while self._open:
                chunk = os.read(self._end, _CHUNK_BYTES)
                self._rest += chunk
                self._open = bool(chunk)
        *lines, self._rest = self._rest.split(b"\n")
        if last and self._rest:
            lines.append(self._rest)
        return [line.decode(errors="replace").rstrip("\r") for line in lines]

    def close(self) -> None:
        os.close(self._end)


def _written_by_line(handle: int) -> TextIO:
    raw = FileIO(handle, "w", closefd=False)
    return _Masked(BufferedWriter(raw), encoding="utf-8", errors="backslashreplace", line_buffering=True)


class _Masked(TextIOWrapper):
    """Writes what a task prints without what Airflow knows for a secret by then, as Airflow's own log of a task has it."""

    def write(self, text: str) -> int:

        super().write(str(internals.redact(text)))
        return len(text)


class _Teller:
    """The listener of a fork: passes on to the process that has the screen."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def lines(self, task: str, lines: Sequence[str]) -> None:
        if lines:
            self._pipe.send(("lines", task, list(lines)))

    def job(self, task: str, status: JobStatus) -> None:
        self._pipe.send(("job", task, dumps(status)))

    def outcome(self, outcome: TaskOutcome) -> None:
        self._pipe.send(("outcome", {"arguments": dict(outcome.arguments), "message": outcome.message}))


def hear(processes: Collection[TaskProcess], listener: LineListener, seconds: float) -> list[TaskProcess]:
    """Pass on what the tasks say, waiting for a first word if need be, and return those whose tasks have ended."""
    wait([handle for each in processes for handle in each.handles], seconds)
    return [each for each in processes if each.hear(listener)]


def _begin(
    work: Work, pipe: Connection, printed: _Printed | None, parent: int, stop: Callable[[], None]
) -> None:
    die_with(parent)
    leave_to_parent()  # the run's own lock says whether the run lives
    if printed is not None:
        printed.take()
    else:
        sys.stdout, sys.stderr = _written_by_line(1), _written_by_line(2)
    _serve(work, pipe, stop)


def _serve(work: Work, pipe: Connection, stop: Callable[[], None]) -> None:
    teller = _Teller(pipe)
    # A terminal sends Ctrl-C to all of its processes: the run decides then, and asks this one to end.
    signal.signal(signal.SIGINT, lambda *_: None)
    while True:
        signal.signal(signal.SIGTERM, lambda *_: stop())  # a task leaves Airflow's own handler behind
        try:
            order = pipe.recv()
        except EOFError:
            return
        outcome = work(order, teller)
        sys.stdout.flush()
        sys.stderr.flush()
        teller.outcome(outcome)
