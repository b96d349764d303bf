"""A connection that lets bytes through slowly, both ways."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

_CHUNKS_A_SECOND = 20


@dataclass
class SlowLink:
    """It connects a client to a port. :ivar passed: bytes that have passed to the server."""

    port: int
    passed: int = 0


@contextmanager
def slow_link(server: int, *, bytes_a_second: int) -> Iterator[SlowLink]:
    """Give a port of this machine that is another one's, for one client."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        link = SlowLink(door.getsockname()[1])
        threading.Thread(target=_carry, args=(door, server, link, bytes_a_second), daemon=True).start()
        yield link


def _carry(door: socket.socket, server: int, link: SlowLink, bytes_a_second: int) -> None:
    client, _ = door.accept()
    behind = socket.create_connection(("127.0.0.1", server))

    def pass_on(source: socket.socket, target: socket.socket, *, counts: bool) -> None:
        with suppress(OSError):  # the other end has gone
            while data := source.recv(bytes_a_second // _CHUNKS_A_SECOND):
                target.sendall(data)
                link.passed += len(data) * counts
                time.sleep(len(data) / bytes_a_second)  # the link's own pace
        for end in (source, target):
            end.close()

    back = threading.Thread(target=pass_on, args=(behind, client), kwargs={"counts": False}, daemon=True)
    back.start()
    pass_on(client, behind, counts=True)
