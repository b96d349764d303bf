"""The waiting processes of a home: a socket, a lock and a note each, in a folder that only its owner can enter."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from muster.cli.warm.key import signature
from muster.cli.warm.messages import is_ours
from muster.core.locks import is_locked

FOLDER = "waiting"
MOST = 3
"""How many wait in a home; one is of 140 MB."""


@dataclass(frozen=True, kw_only=True)
class Note:
    """What a waiting process writes about itself.

    :param began: when it was started, in seconds since the epoch.
    :param runs: how many commands it has forked for; `last` is when it did so last.
    """

    pid: int
    began: float
    runs: int
    last: float


@dataclass(frozen=True)
class WarmPlace:
    """The place of one waiting process, whether it runs or not.

    :param folder: the home's.
    """

    folder: Path
    key: str

    def ready(self) -> bool:
        """Whether the folder exists, made if need be, and only its owner can write into it."""
        try:
            self.folder.mkdir(mode=0o700, exist_ok=True)
            found = self.folder.lstat()
        except OSError:
            return False
        return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077

    def connect(self) -> socket.socket | None:
        """Return a connection to the process; None if it is not there."""
        connection = socket.socket(socket.AF_UNIX)
        try:
            with _short(self.folder) as folder:
                connection.connect(f"{folder}/{self.key}.sock")
            if is_ours(connection, uid=os.getuid()):
                return connection
        except OSError:
            pass
        connection.close()
        return None

    def listen(self) -> tuple[socket.socket, int] | None:
        """Become the waiting process: return the socket, and the lock to hold; None if another process has it."""
        lock = os.open(self._path("lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return None
        self._path("sock").unlink(missing_ok=True)
        self._replace_others()
        listening = socket.socket(socket.AF_UNIX)
        with _short(self.folder) as folder:
            listening.bind(f"{folder}/{self.key}.sock")
        listening.listen()
        return listening, lock

    def _replace_others(self) -> None:
        """Have those end that were used longest ago: an environment that changes at each command would pile them up."""
        others = [path for path in self.folder.glob("*.sock") if path.stem != self.key]
        for path in sorted(others, key=_used, reverse=True)[MOST - 1 :]:
            with suppress(OSError):
                path.unlink()

    def is_here(self, mark: str) -> bool:
        """Whether the socket is still there, and the one that was bound."""
        return bool(mark) and self.mark() == mark

    def mark(self) -> str:
        """Return what tells this socket from one that is bound later."""
        return signature(self._path("sock"))

    def tell(self, note: Note) -> None:
        """Write the process's note."""
        with suppress(OSError):  # it is for people
            self._path("json").write_text(json.dumps(asdict(note)))

    def clear(self) -> None:
        """Remove what a process leaves."""
        for kind in ("sock", "json", "lock"):
            with suppress(OSError):
                self._path(kind).unlink()

    def _path(self, kind: str) -> Path:
        return self.folder / f"{self.key}.{kind}"


def waiting(home: Path) -> Iterator[Note]:
    """Yield the processes that wait in a home, and remove the files of killed ones."""
    for path in sorted((home / FOLDER).glob("*.lock")):
        place = WarmPlace(path.parent, path.stem)
        if not is_locked(path):
            place.clear()
            continue
        with suppress(OSError, ValueError, TypeError):  # it ends at this moment
            yield Note(**json.loads(path.with_suffix(".json").read_bytes()))


def _used(path: Path) -> float:
    try:
        return path.with_suffix(".json").stat().st_mtime
    except OSError:
        return 0.0


@contextmanager
def _short(folder: Path) -> Iterator[str]:
    """Give a folder a short path: the address of a socket has at most 107 bytes, and a home's path may be longer."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{handle}"
    finally:
        os.close(handle)
