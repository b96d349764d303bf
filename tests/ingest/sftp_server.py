"""Runs in the image ingest: an SFTP server over a folder, for one user. Its first line is its port and its public key.

``sftp_server.py FOLDER [SESSIONS]``: how many it has at once at most. A folder ``new`` that is not there is looked for by two sessions, or for a
second, before either is told so: both would make it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import paramiko

USER, WORD = "muster-test", "a-word-of-the-tests"
MEETING_SECONDS = 1.0


class Server(paramiko.ServerInterface):
    """Lets one user in."""

    def check_auth_password(self, username: str, password: str) -> int:
        """See paramiko."""
        right = (username, password) == (USER, WORD)
        return paramiko.AUTH_SUCCESSFUL if right else paramiko.AUTH_FAILED

    def get_allowed_auths(self, username: str) -> str:
        """See paramiko."""
        return "password"

    def check_channel_request(self, kind: str, chanid: int) -> int:
        """See paramiko."""
        return paramiko.OPEN_SUCCEEDED


class Files(paramiko.SFTPServerInterface):
    """Reads and writes below a folder."""

    root = Path()
    meeting = threading.Barrier(2)

    def _path(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def list_folder(self, path: str) -> Any:
        """See paramiko."""
        try:
            return [
                paramiko.SFTPAttributes.from_stat(each.lstat(), each.name)
                for each in self._path(path).iterdir()
            ]
        except OSError as error:
            return paramiko.SFTPServer.convert_errno(error.errno or 0)

    def stat(self, path: str) -> Any:
        """See paramiko."""
        there = self._path(path)
        if there.name == "new" and not there.exists():
            with contextlib.suppress(threading.BrokenBarrierError):  # no second session looks for the folder
                self.meeting.wait(MEETING_SECONDS)
        try:
            return paramiko.SFTPAttributes.from_stat(self._path(path).stat())
        except OSError as error:
            return paramiko.SFTPServer.convert_errno(error.errno or 0)

    lstat = stat

    def open(self, path: str, flags: int, attr: Any) -> Any:
        """See paramiko."""
        handle = paramiko.SFTPHandle(flags)
        try:
            if flags & os.O_WRONLY:
                handle.writefile = self._path(path).open("wb")  # type: ignore[attr-defined]
            else:
                handle.readfile = self._path(path).open("rb")  # type: ignore[attr-defined]
        except OSError as error:
            return paramiko.SFTPServer.convert_errno(error.errno or 0)
        return handle

    def mkdir(self, path: str, attr: Any) -> int:
        """See paramiko."""
        try:
            self._path(path).mkdir()
        except OSError as error:
            return paramiko.SFTPServer.convert_errno(error.errno or 0)
        return paramiko.SFTP_OK


def main(folder: str, sessions: str = "100") -> None:
    """Serve until the end."""
    Files.root = Path(folder)
    key = paramiko.ECDSAKey.generate()
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], key.get_name(), key.get_base64(), flush=True)
    served: list[paramiko.Transport] = []
    while True:
        client, _ = listener.accept()
        served = [each for each in served if each.is_alive()]
        if len(served) >= int(sessions):
            client.close()
            continue
        transport = paramiko.Transport(client)
        served.append(transport)
        transport.add_server_key(key)
        transport.set_subsystem_handler("sftp", paramiko.SFTPServer, Files)
        threading.Thread(target=transport.start_server, kwargs={"server": Server()}, daemon=True).start()


os.environ.pop("SSH_AUTH_SOCK", None)
main(*sys.argv[1:])
