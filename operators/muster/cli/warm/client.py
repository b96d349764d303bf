"""Runs a command in a fork of the waiting process, and stands for that fork towards terminal and caller.

It passes signals on to the fork and ends as the fork ended. If it is killed, the kernel kills the fork: the fork holds
the reading end of a pipe whose only writing end is here.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from types import FrameType
from typing import Any

from muster.airflow.embedded.home import EmbeddedHome
from muster.cli.warm import here
from muster.cli.warm.key import absolute, facts_of, key_of
from muster.cli.warm.messages import receive, send
from muster.cli.warm.place import FOLDER, WarmPlace
from muster.core.errors import MusterError
from muster.core.interpreters import python_command

_SERVER = "from muster.cli.warm.server import main; main()"
# A terminal sends these to all processes before it, a person or a program the others to one.
_TO_ALL = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
_TO_ONE = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH)


def run_there(home: EmbeddedHome, *, stdout: int, starting: Callable[[], None]) -> int | None:
    """Run this process's command in a fork of the home's waiting process, and return how it ended.

    :param stdout: the file that is the command's standard output.
    :param starting: called if Airflow must be imported first.
    :returns: an exit code, or a signal's number below zero; None where there is no such process and none can be
        had, so that nothing has run.
    :raises MusterError: the fork was lost, and how it ended is not known.
    """
    if here.forked or here.arguments is None or os.environ.get("MUSTER_NO_WARM") == "1" or sys.gettrace():
        return None  # a debugger follows this process
    with suppress(OSError):  # what runs here instead will say so
        home.settings.make_home()
    place = WarmPlace(home.settings.home / FOLDER, key_of(facts_of(home)))
    if not place.ready():
        return None
    connection = place.connect()
    if connection is not None:
        with closing(connection):
            ended = _hand_over(connection, stdout)
        if ended is not None:
            return ended
    starting()
    with closing(_start(home, place)) as connection:
        return _hand_over(connection, stdout)


def _start(home: EmbeddedHome, place: WarmPlace) -> socket.socket:
    """Start the process, and return a connection to it, which it serves first."""
    ours, its = socket.socketpair()
    told = {
        "path": absolute(sys.path),
        "home": str(home.settings.home),
        "cache": str(home.settings.cache),
        "dags": str(home.dags),
        "key": place.key,
    }
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # as multiprocessing does
    with its:
        subprocess.Popen(
            python_command(*flags, "-c", _SERVER, str(its.fileno()), json.dumps(told)),
            pass_fds=[its.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    return ours


def _hand_over(connection: socket.socket, stdout: int) -> int | None:
    """Give the command to the process and follow it; None where the process does not take it."""
    lifeline, held = os.pipe()
    folder = os.open(".", os.O_PATH | os.O_CLOEXEC)
    request = {
        "argv": [sys.argv[0], *(here.arguments or ())],
        "path": sys.path,
        "environment": dict(os.environ),
        "umask": _umask(),
    }
    try:
        try:
            send(connection, request, [0, stdout, 2, folder, lifeline])
        finally:
            os.close(lifeline)
            os.close(folder)
        answer, handles = receive(connection)
        if "pid" not in answer:
            return None
        return _follow(connection, answer["pid"], handles[0])
    except (EOFError, ConnectionError):
        return None
    finally:
        os.close(held)


def _follow(connection: socket.socket, pid: int, process: int) -> int:
    with _signals_go_to(pid, process):
        try:
            return int(receive(connection)[0]["ended"])
        except (EOFError, ConnectionError):
            raise MusterError(
                f"process {pid}, which ran this command, was lost, and its waiting process with it: see muster jobs ls; "
                "`muster run DAG --resume` goes on from there"
            ) from None
        finally:
            os.close(process)


@contextmanager
def _signals_go_to(pid: int, process: int) -> Iterator[None]:
    """Pass signals to this process on to the fork; the fork also ignores what this process ignores."""

    def pass_on(number: int, _frame: FrameType | None) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(process, 0)  # else its number might be another's
            if number in _TO_ONE:
                os.kill(pid, number)
            elif number != signal.SIGTSTP:
                os.killpg(pid, number)
            else:
                os.killpg(pid, signal.SIGSTOP)  # SIGTSTP does not stop a session without a terminal
                os.kill(os.getpid(), signal.SIGSTOP)
                os.killpg(pid, signal.SIGCONT)

    before: dict[int, Any] = {}
    number: int
    for number in (*_TO_ALL, *_TO_ONE, signal.SIGTSTP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, pass_on)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_as(ended: int) -> int:
    """Return an exit code, or end this process by the signal that ended the fork."""
    if ended < 0:
        sys.stdout.flush()
        sys.stderr.flush()
        with suppress(OSError):  # SIGKILL's cannot be set, and need not be
            signal.signal(-ended, signal.SIG_DFL)
        os.kill(os.getpid(), -ended)
    return ended if ended >= 0 else 128 - ended


def _umask() -> int:
    found = os.umask(0o077)
    os.umask(found)
    return found
