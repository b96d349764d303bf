"""A process of Airflow's as a fork of this one, with what a program would have: a session, streams, signals of its own."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from io import TextIOWrapper

from muster.core.forking import do_and_end, take_streams
from muster.core.linux import die_with
from muster.core.locks import leave_to_parent


class ForkedComponent:
    """A fork of this process that does one thing and ends.

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
