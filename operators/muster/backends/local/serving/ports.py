"""Ports of 127.0.0.1: a deployment is given one when it first serves, and keeps it."""

from __future__ import annotations

import errno
import socket
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path

from muster.core.errors import BackendError

FIRST_PORT = 8081
LAST_PORT = 8980
PORTS_OF_A_HOME = 10


def bind(home: Path, *, before: int, taken: Collection[int]) -> socket.socket:
    """Return a socket bound to the port that a deployment had before, or to another one.

    :param before: 0 where it had none.
    :param taken: by other deployments of this home, those that are down too.
    :raises BackendError: none is free.
    """
    for port in (*([before] if before else []), *_ports(home)):
        if port in taken:
            continue
        door = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            door.bind(("127.0.0.1", port))
        except OSError as error:
            door.close()
            if error.errno != errno.EADDRINUSE:
                raise BackendError(f"port {port} of 127.0.0.1: {error.strerror}") from error
        else:
            # Only now, so that no two can have it at once; a connection that it answered would else keep it for a minute.
            door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            return door
    raise BackendError(f"no port of 127.0.0.1 from {FIRST_PORT} to {LAST_PORT} is free: retire a deployment")


def _ports(home: Path) -> Iterator[int]:
    """All ports, from one on that each home has to itself as far as can be.

    What served is brought back on its own port only. Were all homes to begin with the first, one
    would take the port of another's deployment whenever that is down for a moment.
    """
    homes = (LAST_PORT + 1 - FIRST_PORT) // PORTS_OF_A_HOME
    first = FIRST_PORT + zlib.crc32(bytes(home)) % homes * PORTS_OF_A_HOME
    yield from range(first, LAST_PORT + 1)
    yield from range(FIRST_PORT, first)
