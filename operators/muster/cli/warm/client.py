"""Runs a command in a fork of the waiting process, and stands for that fork towards terminal and caller.

It passes signals on to the fork and ends as the fork ended. Once it is killed, the process that watches the fork kills it.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from muster import __version__
from muster.airflow.embedded.home import EmbeddedHome
from muster.cli import warm
from muster.cli.warm.place import FOLDER, WarmPlace
from muster.core.errors import MusterError
from muster.core.interpreters import python_command

# A shell sets these anew for each command or folder; no library reads them when it is imported.
_SHELLS_OWN = frozenset({"PWD", "OLDPWD", "SHLVL", "_", "COLUMNS", "LINES"})
_RIGHTS = (
    *("Uid", "Gid", "Groups", "SigBlk", "SigIgn", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"),
    *("NoNewPrivs", "Seccomp", "Cpus_allowed_list", "Mems_allowed_list"),
)


def key_of(home: EmbeddedHome) -> str:
    """Return the key of all that is fixed for a process of this user, started here and now, once Airflow is imported."""
    root, zone = home.root, Path("/etc/localtime")
    files = [root / "airflow.cfg", root / "config", root / "plugins", zone, Path(sys.executable), Path("/")]
    facts = [
        __version__,
        home.environment(),
        {name: value for name, value in os.environ.items() if name not in _SHELLS_OWN},
        [sys.executable, sys.version, str(sys.flags), str(sys._xoptions), str(sys.warnoptions)],
        [(str(path), signature(path)) for path in (*map(Path, absolute(sys.path)), *files)],
        _system(),
    ]
    text = json.dumps(facts, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def absolute(entries: list[str]) -> list[str]:
    """Return Python's path without entries that depend on the working folder."""
    return [str(Path(entry).absolute()) for entry in entries]


def signature(path: Path) -> str:
    """Return a text that changes when a file is written or replaced, or a folder gains or loses an entry; "" if it is missing.

    An installation makes or removes a folder beside the packages, ``NAME-VERSION.dist-info``.
    """
    try:
        found = path.stat()
    except OSError:
        return ""
    return f"{found.st_dev} {found.st_ino} {found.st_size} {found.st_mtime_ns}"


def _system() -> list[Any]:
    """Return rights, limits and namespaces, which a container, a batch system or ``ulimit`` may change."""
    limits = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    found: list[Any] = [
        os.getpriority(os.PRIO_PROCESS, 0),
        [resource.getrlimit(getattr(resource, name)) for name in limits],
        [line for line in _read("status").splitlines() if line.partition(":")[0] in _RIGHTS],
        *map(_read, ("cgroup", "oom_score_adj")),
    ]
    with suppress(OSError):
        found.append(sorted(str(path.readlink()) for path in Path("/proc/self/ns").iterdir()))
    return found


def _read(name: str) -> str:
    try:
        return Path("/proc/self", name).read_text(errors="replace")
    except OSError:
        return ""


RUN = b"r"
"""The message that hands over a command, with its open files, and its answer where a fork has it."""
ENDED = struct.Struct("i")
"""How the fork ended: an exit code, or a signal's number below zero."""
_SERVER = "from muster.cli.warm.server import main; main()"
_PASSED_ON = (
    *(signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH, signal.SIGTSTP),
)


def run_there(home: EmbeddedHome, *, stdout: int, starting: Callable[[], None]) -> int | None:
    """Run this process's command in a fork of the home's waiting process, and return how it ended.

    :param stdout: the file that is the command's standard output.
    :param starting: called if Airflow must be imported first.
    :returns: an exit code, or a signal's number below zero; None where there is no such process and none can be
        had, so that nothing has run.
    :raises MusterError: the fork was lost, and how it ended is not known.
    """
    if warm.forked or warm.arguments is None or os.environ.get("MUSTER_NO_WARM") == "1" or sys.gettrace():
        return None  # a debugger follows this process
    place = WarmPlace(home.settings.home / FOLDER, key_of(home))
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
    """Give the command to the process, and wait for its end; None where the process does not take it."""
    umask = os.umask(0o077)
    os.umask(umask)
    told = {
        "argv": [sys.argv[0], *(warm.arguments or ())],
        "path": sys.path,
        "environment": dict(os.environ),
        "umask": umask,
    }
    folder = os.open(".", os.O_PATH | os.O_CLOEXEC)
    try:
        with os.fdopen(os.memfd_create("command"), "wb") as written:  # secrets, too: on no disk
            written.write(json.dumps(told).encode("ascii"))
            written.flush()
            socket.send_fds(connection, [RUN], [0, stdout, 2, folder, written.fileno()])
        if connection.recv(1) != RUN:
            return None
    except ConnectionError:
        return None
    finally:
        os.close(folder)
    with _signals_go_to(connection), suppress(ConnectionError):
        if len(ended := connection.recv(ENDED.size)) == ENDED.size:
            return int(ENDED.unpack(ended)[0])
    raise MusterError(
        "the process that ran this command was lost: see muster jobs ls; `muster run DAG --resume` goes on from there"
    )


@contextmanager
def _signals_go_to(connection: socket.socket) -> Iterator[None]:
    """Pass signals to this process on to the fork; the fork also ignores what this process ignores."""

    def pass_on(number: int, _frame: FrameType | None) -> None:
        with suppress(OSError):  # it has ended
            connection.send(bytes([number]))
            if number == signal.SIGTSTP:
                os.kill(os.getpid(), signal.SIGSTOP)
                connection.send(bytes([signal.SIGCONT]))

    before: dict[int, Any] = {}
    number: int
    for number in _PASSED_ON:
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
