"""The messages between client and waiting process: JSON documents, some with open files."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Sequence
from typing import Any

_LENGTH = struct.Struct("!Q")
_MOST_HANDLES = 8
_UCRED = struct.Struct("3i")


def send(to: socket.socket, document: Any, handles: Sequence[int] = ()) -> None:
    """Send a document, and copies of open files with it."""
    text = json.dumps(document).encode("ascii")
    socket.send_fds(to, [_LENGTH.pack(len(text))], list(handles))
    to.sendall(text)


def receive(of: socket.socket) -> tuple[Any, list[int]]:
    """Return the next document and its files, which belong to the caller. :raises EOFError: the other side is gone."""
    head, handles, _, _ = socket.recv_fds(of, _LENGTH.size, _MOST_HANDLES)
    head += _exactly(of, _LENGTH.size - len(head)) if head else b""
    if not head:
        raise EOFError
    return json.loads(_exactly(of, _LENGTH.unpack(head)[0])), handles


def is_ours(peer: socket.socket, *, uid: int) -> bool:
    """Whether the process at the other end is this user's (``SO_PEERCRED``, unix(7))."""
    found = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    return bool(_UCRED.unpack(found)[1] == uid)


def _exactly(of: socket.socket, count: int) -> bytes:
    found = bytearray()
    while len(found) < count:
        chunk = of.recv(min(count - len(found), 1 << 20))
        if not chunk:
            raise EOFError
        found += chunk
    return bytes(found)
