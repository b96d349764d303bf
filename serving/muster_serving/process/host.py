"""The container of a pod in which workers run: each connection to its socket is a worker of its own.

``python PROGRAM NAME --server=workers --model=FOLDER --setup=JSON`` runs in the author's image, beside the container of the
front, which needs another. The front connects when it wants a worker, and hangs up when it wants it to end; a worker that
ends by itself is told to it. After SIGTERM the host stays until the front, which finishes its requests, has hung up.
"""

from __future__ import annotations

import select
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from muster_serving.process.frames import ENDED, write
from muster_serving.process.start import Setup, counted, counter, end_group, how_it_ended, start

_LOOK_MILLISECONDS = 200


@dataclass(frozen=True)
class _Kept:
    child: subprocess.Popen[bytes]
    connection: socket.socket
    begun: int


class Host:
    """Starts workers for the front in the other container."""

    def __init__(self, path: Path, folder: Path, setup: Setup) -> None:
        path.unlink(missing_ok=True)
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(path))
        path.chmod(0o660)
        self._listening.listen()
        self._folder = folder
        self._setup = setup
        self._kept: list[_Kept] = []
        self._leaving = False

    def run(self) -> None:
        """Serve until SIGTERM, and until the front has hung up then. One thread, with which the workers die."""
        signal.signal(signal.SIGTERM, self._leave)
        while not (self._leaving and not self._kept):
            watched = select.poll()
            watched.register(self._listening, select.POLLIN)
            for kept in self._kept:
                watched.register(kept.connection, select.POLLRDHUP)
            for number, _ in watched.poll(_LOOK_MILLISECONDS):
                if number == self._listening.fileno():
                    self._accept()
                for kept in self._kept:
                    if kept.connection.fileno() == number:
                        end_group(kept.child)
            self._kept = [kept for kept in self._kept if not self._is_over(kept)]

    def _leave(self, *_: object) -> None:
        self._leaving = True

    def _accept(self) -> None:
        connection, _ = self._listening.accept()
        begun = counter()
        try:
            child = start(self._folder, self._setup, connection=connection.fileno(), begun=begun, out=None)
        except OSError as error:
            _tell(connection, f"cannot be started: {error}", counted(begun))
        else:
            self._kept.append(_Kept(child, connection, begun))

    def _is_over(self, kept: _Kept) -> bool:
        """Whether a worker has ended; then its front is told."""
        code = kept.child.poll()
        if code is None:
            return False
        end_group(kept.child)
        how = how_it_ended(code, last_line="", gib=self._setup.worker_gib)
        _tell(kept.connection, f"{how}; the log of container workers says more", counted(kept.begun))
        return True


def _tell(connection: socket.socket, how: str, begun: int) -> None:
    with connection, suppress(OSError):
        connection.sendall(write([(ENDED, how.encode()), (ENDED, str(begun).encode())]))
        connection.shutdown(socket.SHUT_RDWR)  # a process that the worker forked may hold it open


def main(path: Path, folder: Path, setup: Setup) -> None:
    """Serve until the pod ends."""
    try:
        host = Host(path, folder, setup)
    except OSError as error:
        sys.exit(f"{path} cannot be listened on: {error}")
    host.run()
