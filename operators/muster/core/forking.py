"""Forks: what one takes over to be a process of its own, and how a process ends, so that no copy ever runs on."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NoReturn

from muster.core.linux import die_with


class Forked(BaseException):
    """Raised in a forked child: this process must not go on as its parent."""


def spawn(
    arguments: Sequence[str] | None,
    *,
    environment: Mapping[str, str],
    folder: str = "/",
    stdin: int | None = None,
) -> tuple[int, int]:
    """Start a process in a session of its own that dies with this one; return its pid and the end of a pipe with its output.

    stdout and stderr share the pipe, so their order is kept. A program that cannot be run ends with
    status 127 and says why in its output. Without arguments the child is a copy of this process.

    :param stdin: its input; nothing unless given.
    :raises Forked: in that copy, to leave the caller's stack.
    """
    parent = os.getpid()
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read)
            os.setsid()
            die_with(parent)
            take_streams(write, stdin=stdin)
            os.close(write)
            for number in (signal.SIGTERM, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(environment)
            if arguments is None:
                raise Forked
            execute(arguments, os.environ)
        except Forked:
            raise
        except BaseException as error:
            os.write(2, f"cannot run {arguments and arguments[0]}: {error}\n".encode())
            os._exit(127)
    os.close(write)
    os.set_blocking(read, False)
    return pid, read


def execute(arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    """Become a program. :raises OSError: it cannot be run."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, other programs expect them
        signal.signal(number, signal.SIG_DFL)
    os.execvpe(arguments[0], list(arguments), dict(environment))  # noqa: S606 no shell is wanted


def take_streams(output: int, *, stdin: int | None = None) -> None:
    """Make open files this process's input, nothing unless given, and output."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for given, wanted in ((nothing if stdin is None else stdin, 0), (output, 1), (output, 2)):
        os.dup2(given, wanted)
    os.close(nothing)


def do_and_end(work: Callable[[], object], *, registered: bool = True) -> NoReturn:
    """Do the work of a whole process and end the process, whatever comes of it, without freeing its objects one by one.

    With Airflow loaded, freeing takes half a second of CPU, and on a busy machine several seconds, after the last output.

    :param registered: whether threads that have to be are waited for, and functions registered with :mod:`atexit` run.
    """
    code = 1
    try:
        work()
        code = 0
    except SystemExit as end:
        code = _code(end)
    except BaseException:
        import traceback  # slow to import, and a worker has no need of it

        traceback.print_exc()
    try:
        if registered:
            _do_registered()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):  # the disk is full, or it was closed
                stream.flush()
        os._exit(code)


def leave(status: int) -> NoReturn:
    """End this process as :func:`do_and_end` does, or, where its output cannot be written, as Python does."""
    _do_registered()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        sys.exit(status)
    os._exit(status)


def end_at_sigterm() -> None:
    """Have SIGTERM end this process at once: the kernel ignores it where a container's first process does not handle it."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))


def _do_registered() -> None:
    import atexit
    import threading

    threading._shutdown()  # type: ignore[attr-defined]  # there is no public function that does either
    atexit._run_exitfuncs()


def _code(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return (end.code or 0) & 0xFF
    print(end.code, file=sys.stderr)  # noqa: T201 as Python does
    return 1
