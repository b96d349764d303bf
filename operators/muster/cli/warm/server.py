"""The waiting process: it has Airflow imported, one thread and no open database, and forks for each command.

It ends ten minutes after its last command, when its home is deleted, or when a file that it imported changes.
"""

from __future__ import annotations

import fcntl
import json
import os
import selectors
import signal
import socket
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from muster.cli import leaving
from muster.cli.warm import here
from muster.cli.warm.key import signature
from muster.cli.warm.messages import is_ours, receive, send
from muster.cli.warm.place import FOLDER, Note, WarmPlace

IDLE_SECONDS = 600.0
_LOOK_SECONDS = 30.0  # how often it looks whether its home is still there
_F_SETSIG = 10  # fcntl(2); Python has no name for it
_PATIENCE_SECONDS = 5.0  # for a client that has connected and says nothing


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command that a client has handed over.

    :param handles: its stdin, stdout, stderr, working folder, and what is closed when the client dies.
    """

    client: socket.socket
    told: dict[str, Any]
    handles: list[int]


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
    waiting = _Waiting(WarmPlace(settings.home / FOLDER, told["key"]), Imported.now(sources(), since=began))
    found = waiting.wait(first)
    if found is not None:
        become(found)
        command()


@dataclass(frozen=True)
class Imported:
    """The files of imported modules, as they were."""

    files: dict[Path, str]

    @classmethod
    def now(cls, files: set[Path], *, since: int) -> Imported:
        """Look at files; one that was written after the imports began counts as changed, in nanoseconds since the epoch."""
        return cls({path: "" if _written(path) > since else signature(path) for path in files})

    def changed(self) -> bool:
        """Whether one of them was written or replaced."""
        return any(signature(path) != before or not before for path, before in self.files.items())


class _Waiting:
    """The loop of the process."""

    def __init__(self, place: WarmPlace, imported: Imported) -> None:
        self._place = place
        self._imported = imported
        self._note = Note(pid=os.getpid(), began=time.time(), runs=0, last=time.time())
        self._ready = selectors.DefaultSelector()
        self._runs: dict[int, tuple[int, socket.socket]] = {}

    def wait(self, first: socket.socket) -> Command | None:
        """Serve clients; return in each fork its command, and None at the end.

        :param first: the client that started this process. If another process waits already, only this client is served.
        """
        found = self._place.listen()
        if (command := self._serve(first)) is not None:
            return self._alone(command, found)
        if found is not None:
            self._ready.register(found[0], selectors.EVENT_READ)
        mark = self._place.mark() if found else ""
        while self._goes_on(mark):
            for key, _ in self._ready.select(_LOOK_SECONDS):
                if found is None or key.fileobj is not found[0]:
                    self._reap(key.fd)
                elif (command := self._accept(found[0])) is not None:
                    return self._alone(command, found)
        if self._place.is_here(mark):
            self._place.clear()
        return None

    def _goes_on(self, mark: str) -> bool:
        if self._runs:
            return True
        return self._place.is_here(mark) and time.time() - self._note.last < IDLE_SECONDS

    def _accept(self, listening: socket.socket) -> Command | None:
        """Serve a client; if an imported file has changed, another process serves it."""
        client, _ = listening.accept()
        if not self._imported.changed():
            return self._serve(client)
        self._place.clear()
        self._ready.unregister(listening)
        listening.close()
        client.close()
        return None

    def _serve(self, client: socket.socket) -> Command | None:
        """Fork for a client's command: return the command in the fork, and None in this process."""
        client.settimeout(_PATIENCE_SECONDS)
        try:
            if not is_ours(client, uid=os.getuid()):
                raise EOFError
            told, handles = receive(client)
        except (EOFError, OSError, ValueError):
            client.close()
            return None
        client.settimeout(None)
        if (pid := os.fork()) == 0:
            return Command(client=client, told=told, handles=handles)
        for handle in handles:
            os.close(handle)
        self._follow(pid, client)
        return None

    def _follow(self, pid: int, client: socket.socket) -> None:
        process = os.pidfd_open(pid)
        with suppress(OSError):  # a client that is gone takes its fork with it
            send(client, {"pid": pid}, [process])
        self._runs[process] = (pid, client)
        self._ready.register(process, selectors.EVENT_READ)
        self._note = replace(self._note, runs=self._note.runs + 1, last=time.time())
        self._place.tell(self._note)

    def _reap(self, process: int) -> None:
        """Tell a client how its fork has ended."""
        pid, client = self._runs.pop(process)
        self._ready.unregister(process)
        os.close(process)
        ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with suppress(OSError):  # the fork has told it, and it is gone
            send(client, {"ended": ended})
        client.close()

    def _alone(self, command: Command, found: tuple[socket.socket, int] | None) -> Command:
        """Close, in a fork, the open files of the waiting process."""
        self._ready.close()
        for process, (_, client) in self._runs.items():
            os.close(process)
            client.close()
        if found is not None:
            found[0].close()
            os.close(found[1])
        return command


def become(command: Command) -> None:
    """Take over the client's open files, working folder, variables and arguments."""
    os.setsid()
    stdin, stdout, stderr, folder, lifeline = command.handles
    _die_when_closed(lifeline)
    for handle, number in ((stdin, 0), (stdout, 1), (stderr, 2)):
        os.dup2(handle, number)
        os.close(handle)
    os.fchdir(folder)
    os.close(folder)
    os.umask(command.told["umask"])
    os.environ.clear()
    os.environ.update(command.told["environment"])
    sys.path[:] = command.told["path"]
    sys.argv[:] = command.told["argv"]
    _open_streams()
    time.tzset()
    fcntl.fcntl(command.client, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    here.forked = True
    leaving.told.append(partial(_tell_end, command.client))


def _die_when_closed(lifeline: int) -> None:
    """Have the kernel kill this process when the last writing end of a pipe is closed (``O_ASYNC``, fcntl(2))."""
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, _F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    with selectors.DefaultSelector() as looked:  # it may have been closed before
        looked.register(lifeline, selectors.EVENT_READ)
        if looked.select(0):
            os._exit(128 + signal.SIGKILL)


def _open_streams() -> None:
    """Open Python's streams again, as a new process with the same variables would."""
    for name, number, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        before = getattr(sys, f"__{name}__")
        stream = open(  # noqa: SIM115 it lasts as long as the process
            number,
            mode,
            buffering=1 if os.isatty(number) or number == 2 else -1,
            encoding=before.encoding,
            errors=before.errors,
            closefd=False,
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _tell_end(client: socket.socket, status: int) -> None:
    with suppress(OSError):
        send(client, {"ended": status})


def _written(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return sys.maxsize
