"""The waiting process: it has Airflow imported, one thread and no open database, and forks for each command.

It ends ten minutes after its last command, when its home is deleted, or when a file that it imported changes. What it forks
goes on without it: each command is the child of a process that watches command and client, and tells the client how it ended.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from io import TextIOWrapper
from pathlib import Path

from muster.cli import warm
from muster.cli.warm.client import ENDED, RUN, signature
from muster.cli.warm.place import ASK, FOLDER, Note, WarmPlace, is_ours, written
from muster.core.linux import die_with

IDLE_SECONDS = 600.0
_LOOK_SECONDS = 30.0  # how often it looks whether its home is still there
_PATIENCE_SECONDS = 5.0  # for a client that has connected and says nothing
_MOST_HANDLES = 5
# A terminal sends these to all processes before it, a person or a program the others to one.
_TO_ALL = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTSTP, signal.SIGCONT)


def main() -> None:
    """Wait for clients, and run the command in each fork. Arguments: a connection to the first client, and the place."""
    first, told = socket.socket(fileno=int(sys.argv[1])), json.loads(sys.argv[2])
    first.set_inheritable(False)
    sys.path[:] = told["path"]
    began = time.time_ns()
    from muster.airflow.embedded.home import EmbeddedHome
    from muster.airflow.embedded.preload import preload, sources
    from muster.cli import run_summary, stages  # noqa: F401 a run imports them at its end
    from muster.cli.app import main as command
    from muster.core.settings import Settings

    settings = Settings(home=Path(told["home"]), cache=Path(told["cache"]))
    os.umask(0o077)
    preload(EmbeddedHome(settings=settings, dags=Path(told["dags"])))
    os.chdir("/")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries the forks
    place = WarmPlace(settings.home / FOLDER, told["key"])
    if _wait(first, place, Imported.now(sources(), since=began)):
        command()


@dataclass(frozen=True)
class Imported:
    """The files of imported modules, as they were."""

    files: dict[Path, str]

    @classmethod
    def now(cls, files: set[Path], *, since: int) -> Imported:
        """Look at files; one that was written after the imports began counts as changed, in nanoseconds since the epoch."""
        return cls({path: "" if written(path) > since else signature(path) for path in files})

    def changed(self) -> bool:
        """Whether one of them was written or replaced."""
        return any(signature(path) != before or not before for path, before in self.files.items())


def _wait(first: socket.socket, place: WarmPlace, imported: Imported) -> bool:
    """Serve clients; True in each fork that is a command by now, and False at the end.

    :param first: the client that started this process.
    """
    note, listening = Note(pid=os.getpid(), began=time.time(), runs=0), place.listen()
    mark, used = place.mark(), time.time()
    client: socket.socket | None = first
    listening.settimeout(_LOOK_SECONDS)
    while client is not None:
        with client:
            if handles := _taken(client, note):
                if client is not first and imported.changed():
                    break  # the client starts another process
                if os.fork() == 0:
                    listening.close()
                    return _watch(client, handles)
                note, used = replace(note, runs=note.runs + 1), time.time()
                for handle in handles:
                    os.close(handle)
                with suppress(OSError):
                    os.utime(place.path)
        client = None
        while client is None and place.mark() == mark and time.time() - used < IDLE_SECONDS:
            with suppress(TimeoutError):
                client, _ = listening.accept()
            used = time.time() if _some_run() else used
    if place.mark() == mark:
        place.path.unlink(missing_ok=True)
    return False


def _some_run() -> bool:
    try:
        return os.waitpid(-1, os.WNOHANG) is not None
    except ChildProcessError:
        return False


def _taken(client: socket.socket, note: Note) -> list[int]:
    """Return the open files of a client's command; none where it has none, or is not ours."""
    client.settimeout(_PATIENCE_SECONDS)
    handles: list[int] = []
    with suppress(OSError):
        word, handles, _, _ = socket.recv_fds(client, 1, _MOST_HANDLES)
        if is_ours(client, uid=os.getuid()):
            if word == ASK:
                client.sendall(json.dumps(asdict(note)).encode())
            client.settimeout(None)
            return handles
    for handle in handles:
        os.close(handle)
    return []


def _watch(client: socket.socket, handles: list[int]) -> bool:
    """Fork the command: True in that fork. This process passes signals on to it, kills it with its client, and tells its end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    watcher, pid = os.getpid(), os.fork()
    if pid == 0:
        die_with(watcher)
        client.close()
        _become(handles)
        return True
    for handle in handles:
        os.close(handle)
    looked, ended = select.poll(), os.pidfd_open(pid)
    looked.register(ended, select.POLLIN)
    looked.register(client, select.POLLIN)
    with suppress(OSError):  # the client is gone, which is seen below
        client.sendall(RUN)
    while ended not in dict(looked.poll()):
        for number in _heard(client):
            _send(pid, number)
            if number == signal.SIGKILL:
                looked.unregister(client)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with suppress(OSError):
        client.sendall(ENDED.pack(status))
    os._exit(0)


def _heard(client: socket.socket) -> bytes:
    """Return the signals that a client passes on: SIGKILL where it is gone."""
    with suppress(OSError):
        if numbers := client.recv(64):
            return numbers
    return bytes([signal.SIGKILL])


def _send(pid: int, number: int) -> None:
    if number in _TO_ALL:
        with suppress(ProcessLookupError):  # it leads no group yet
            # SIGTSTP does not stop a session without a terminal
            os.killpg(pid, signal.SIGSTOP if number == signal.SIGTSTP else number)
            return
    os.kill(pid, number)


def _become(handles: list[int]) -> None:
    """Take over the client's open files, working folder, variables and arguments."""
    os.setsid()
    stdin, stdout, stderr, folder, written = handles
    for handle, number in ((stdin, 0), (stdout, 1), (stderr, 2)):
        os.dup2(handle, number)
        os.close(handle)
    os.fchdir(folder)
    os.close(folder)
    with os.fdopen(written, "rb") as file:
        file.seek(0)
        told = json.load(file)
    os.umask(told["umask"])
    os.environ.clear()
    os.environ.update(told["environment"])
    sys.path[:] = told["path"]
    sys.argv[:] = told["argv"]
    if isinstance(sys.stdout, TextIOWrapper):  # as of a new process with the same variables, but for this
        sys.stdout.reconfigure(line_buffering=os.isatty(1))
    time.tzset()
    warm.forked = True
