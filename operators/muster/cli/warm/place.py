"""The waiting processes of a home: a socket each, in a folder that only its owner can enter."""

from __future__ import annotations

import json
import os
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

FOLDER = "waiting"
MOST = 3
"""How many wait in a home; one is of 140 MB."""
ASK = b"?"
"""The message that is answered with a :class:`Note`, as JSON."""
_PATIENCE_SECONDS = 5.0
_UCRED = struct.Struct("3i")


@dataclass(frozen=True, kw_only=True)
class Note:
    """What a waiting process says about itself.

    :param began: when it was started, in seconds since the epoch.
    :param runs: how many commands it has forked for.
    """

    pid: int
    began: float
    runs: int


@dataclass(frozen=True)
class WarmPlace:
    """The place of one waiting process, whether it runs or not.

    :param folder: the home's.
    """

    folder: Path
    key: str

    @property
    def path(self) -> Path:
        """Where it listens. It was last used when this was last changed."""
        return self.folder / f"{self.key}.sock"

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
                connection.connect(f"{folder}/{self.path.name}")
            if is_ours(connection, uid=os.getuid()):
                return connection
        except OSError:
            pass
        connection.close()
        return None

    def listen(self) -> socket.socket:
        """Become the waiting process; one that was there before is so no longer."""
        others = [path for path in self.folder.glob("*.sock") if path != self.path]
        for path in sorted(others, key=written, reverse=True)[MOST - 1 :]:
            path.unlink(missing_ok=True)  # an environment that changes at each command would pile them up
        listening = socket.socket(socket.AF_UNIX)
        mine = self.path.with_suffix(f".{os.getpid()}")
        mine.unlink(missing_ok=True)
        with _short(self.folder) as folder:
            listening.bind(f"{folder}/{mine.name}")
        listening.listen()
        mine.rename(self.path)
        return listening

    def mark(self) -> int:
        """Return what tells this socket from one that is bound while its process lives; 0 where there is none."""
        return _stat(self.path, "st_ino")

    def note(self) -> Note | None:
        """Ask the process about itself; None if it is not there. What a killed one left is removed."""
        connection = self.connect()
        if connection is None:
            self.path.unlink(missing_ok=True)
            return None
        with connection, suppress(OSError, ValueError):  # it ends at this moment
            connection.settimeout(_PATIENCE_SECONDS)
            connection.sendall(ASK)
            with connection.makefile("rb") as answer:
                return Note(**json.loads(answer.read()))
        return None


def waiting(home: Path) -> Iterator[Note]:
    """Yield the processes that wait in a home."""
    for path in sorted((home / FOLDER).glob("*.sock")):
        if note := WarmPlace(path.parent, path.stem).note():
            yield note


def is_ours(peer: socket.socket, *, uid: int) -> bool:
    """Whether the process at the other end is this user's (``SO_PEERCRED``, unix(7))."""
    found = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    return bool(_UCRED.unpack(found)[1] == uid)


def written(path: Path) -> int:
    """Return when a file was last written, in nanoseconds since the epoch; 0 where there is none."""
    return _stat(path, "st_mtime_ns")


def _stat(path: Path, field: str) -> int:
    with suppress(OSError):
        return int(getattr(path.stat(), field))
    return 0


@contextmanager
def _short(folder: Path) -> Iterator[str]:
    """Give a folder a short path: the address of a socket has at most 107 bytes, and a home's path may be longer."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{handle}"
    finally:
        os.close(handle)
