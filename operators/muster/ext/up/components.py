"""Airflow's processes as children of one: started, restarted when they die, and ended with all their forks.

A child is a fork of this process that has Airflow imported (:mod:`muster.ext.up.preload`), or else a program.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from io import TextIOWrapper
from pathlib import Path

from muster.backends.local.processes import Process, children, descendants
from muster.core.errors import BackendError
from muster.core.forking import do_and_end, execute, take_streams
from muster.core.linux import die_with
from muster.core.locks import leave_to_parent
from muster.core.patience import Patience

LOG_BYTES = 50 << 20
LONGEST_PAUSE_SECONDS = 30.0
STEADY_SECONDS = 20.0
TAIL_LINES = 12


class ForkedComponent:
    """A fork of this process that does one thing and ends, with what a program would have: a session, streams, signals of its own.

    It must be made by the main thread, which is the only one unless the work is to execute a program: what another holds would
    stay held in the fork for ever.

    :param work: all that it does.
    :param log: an open file for what it prints.
    :param become: called before the work, given the parent; it is to die with it.
    :ivar pid: its number.
    """

    def __init__(
        self, work: Callable[[], None], *, log: int, become: Callable[[int], None] = die_with
    ) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            do_and_end(partial(_begin, work, partial(become, parent), log))
        self._code: int | None = None

    def poll(self) -> int | None:
        """Return how it ended, below 0 by which signal; None where it has not."""
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code

    def wait(self) -> int:
        """Return how it ended, once it has."""
        if self._code is None:
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._code

    def send_signal(self, sig: int) -> None:
        """Send it a signal, if it has not ended."""
        if self.poll() is None:  # else its number may be another's by now
            os.kill(self.pid, sig)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)


def _begin(work: Callable[[], None], become: Callable[[], None], log: int) -> None:
    """Be what a program is that was started by the parent."""
    leave_to_parent()  # the home is locked as long as its `muster up` lives
    os.setsid()
    take_streams(log)
    for stream in (sys.stdout, sys.stderr):  # the same objects: loggers hold them
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
    _forget_signals()
    become()
    work()


def _forget_signals() -> None:
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


@dataclass
class Component:
    """One long-lived process of Airflow.

    :param command: the program that it is where it is no fork.
    :param log: the file of its output.
    :param fork: begins it as a fork that prints into an open file; returns None where it must be a program.
    :param become: what its program does before all else, given the parent; it is to die with it.
    :param end: the signal that asks it to end.
    :param longest_pause_seconds: before its restart, however often it has died.
    :ivar deaths: how often it died in quick succession.
    """

    name: str
    command: Sequence[str]
    log: Path
    environment: Mapping[str, str]
    fork: Callable[[int], ForkedComponent | None] | None = None
    become: Callable[[int], None] = die_with
    end: int = signal.SIGTERM
    longest_pause_seconds: float = LONGEST_PAUSE_SECONDS
    deaths: int = 0
    process: ForkedComponent | None = None
    started: float = 0.0
    due: float = 0.0
    pool: set[Process] = field(default_factory=set)

    def start(self) -> None:
        """Start it; the kernel kills it when this process ends in any way."""
        self.trim_log()
        self.started, self.pool = time.monotonic(), set()
        with self.log.open("ab") as log:
            forked = None if self.fork is None else self.fork(log.fileno())
            self.process = forked or ForkedComponent(
                partial(execute, self.command, self.environment), log=log.fileno(), become=self.become
            )

    def ended(self) -> str | None:
        """How it ended, if it has, in words."""
        code = None if self.process is None else self.process.poll()
        if code is None:
            return None
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    def lost_worker(self) -> bool:
        """Whether one of its worker processes has died while it still runs."""
        if self.process is None:
            return False
        now = {process for pid in children(self.process.pid) if (process := Process.find(pid))}
        lost, self.pool = self.pool - now, now
        return bool(lost)

    def plan_restart(self) -> float:
        """Return the seconds until its restart: none at first, more with each early death."""
        now = time.monotonic()
        self.deaths = 1 if now - self.started > STEADY_SECONDS else self.deaths + 1
        pause = min(2.0 ** (self.deaths - 1), self.longest_pause_seconds)
        self.process, self.due = None, now + pause
        return pause

    def kill(self) -> None:
        """Kill it and all its forks, and return when it is gone."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def trim_log(self) -> None:
        """Empty a log that has grown large; its content is kept once, as ``.old``.

        It is truncated and not renamed: the process and its forks hold it open for appending.
        """
        if self.log.exists() and self.log.stat().st_size > LOG_BYTES:
            with suppress(OSError):  # the disk is full: then room is worth more than the log
                shutil.copyfile(self.log, self.log.with_suffix(".old"))
            os.truncate(self.log, 0)

    def tail(self) -> list[str]:
        """Return its last lines; none if the log was deleted."""
        if not self.log.exists():
            return []
        with self.log.open("rb") as log:
            log.seek(max(0, self.log.stat().st_size - 16_384))
            return log.read().decode(errors="replace").splitlines()[-TAIL_LINES:]


def stop(components: Sequence[Component], *, grace_seconds: float = 3.0) -> None:
    """End the components and their forks, but not muster's jobs and deployments; return when they are gone.

    A running task is not waited for: its job goes on, and the next start adopts it.

    :raises BackendError: a process does not die within ten seconds.
    """
    ending = [(c.process, c.end) for c in components if c.process is not None]
    running = [process for process, _ in ending]
    below = {p for process in running for pid in descendants(process.pid) if (p := Process.find(pid))}
    for process, number in ending:
        process.send_signal(number)
    _wait(lambda: all(process.poll() is not None for process in running), grace_seconds)
    for process in running:
        process.kill()
        process.wait()
    for left in below:
        left.kill()
    if not _wait(lambda: not any(left.alive for left in below), 10.0):
        stuck = sorted(left.pid for left in below if left.alive)
        raise BackendError(f"processes {stuck} of Airflow's do not die when killed: end them by hand")


def _wait(done: Callable[[], bool], seconds: float) -> bool:
    patience = Patience(seconds, first=0.02)
    while not done():
        if not patience.wait():
            return False
    return True
