"""The public port of a deployment: it is given one when it first serves, and keeps it.

The keeper and its guardian hold the socket, so that it outlives every model server and every keeper.
"""

from __future__ import annotations

import errno
import socket
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path

from muster.core.deployment import LOOPBACK
from muster.core.errors import BackendError, DeploymentError
from muster.core.patience import Patience

WAIT_SECONDS = 3.0
ASK_SECONDS = 1.0
_BACKLOG = 2048

_FIRST_PORT = 8081
_LAST_PORT = 8980
_PORTS_OF_A_HOME = 10


class Door:
    """A port: bound first, so that no other program gets it, and open once something serves.

    :param door: its socket, which may be bound already, and open: a keeper takes over that of the one before.
    :param host: the address that it is a port of.
    """

    def __init__(self, port: int, door: socket.socket, *, host: str = LOOPBACK) -> None:
        self._port = port
        self._host = host
        self._socket = door

    def bound(self) -> socket.socket:
        """Return the socket that servers inherit.

        :raises DeploymentError: another program has the port, and not only a server of ours that is dying.
        """
        patience = Patience(WAIT_SECONDS, first=0.05)
        while not self._socket.getsockname()[1]:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                self._socket.bind((self._host, self._port))
            except OSError as error:
                if not patience.wait():
                    raise self._taken(error) from error
        return self._socket

    def open(self) -> None:
        """Let clients connect; they wait until a server accepts them. :raises DeploymentError: as above."""
        try:
            self.bound().listen(_BACKLOG)
        except OSError as error:
            raise self._taken(error) from error

    def refuse(self) -> None:
        """Have clients refused, also those that wait; :meth:`open` ends that."""
        # Of one that does not listen, all that it ever accepts would be shut.
        if self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _taken(self, error: OSError) -> DeploymentError:
        where = f"port {self._port} of {self._host}"
        if error.errno == errno.EADDRINUSE and not listens(self._host, self._port):
            return DeploymentError(
                f"{where} is not free yet: nothing listens there, and connections that have just ended hold it for at "
                "most a minute"
            )
        return DeploymentError(
            f"{where} cannot be listened on ({error.strerror}): end the process that does (`ss -ltnp 'sport = :{self._port}'` "
            "names it), or retire the deployment and deploy again for another port"
        )


def listens(host: str, port: int) -> bool:
    """Whether a process listens on a port; Linux takes 0.0.0.0 for loopback."""
    try:
        socket.create_connection((host, port), timeout=ASK_SECONDS).close()
    except ConnectionRefusedError:
        return False
    except OSError:
        pass  # something listens, and may be too busy to answer
    return True


def bind(home: Path, *, before: int, taken: Collection[int], host: str = LOOPBACK) -> socket.socket:
    """Return a socket bound to the port that a deployment had before, or to another one.

    :param before: 0 where it had none.
    :param taken: by other deployments of this home, those that are down too.
    :param host: the address that it is to listen on.
    :raises BackendError: none is free.
    """
    for port in (*([before] if before else []), *_ports(home)):
        if port in taken:
            continue
        door = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            door.bind((host, port))
        except OSError as error:
            door.close()
            if error.errno != errno.EADDRINUSE:
                raise BackendError(
                    f"port {port} of {host}: {error.strerror}; host is an address of this machine, as `ip addr` lists them"
                ) from error
        else:
            # Only now, so that no two can have it at once; a connection that it answered would else keep it for a minute.
            door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            return door
    raise BackendError(f"no port of {host} from {_FIRST_PORT} to {_LAST_PORT} is free: retire a deployment")


def _ports(home: Path) -> Iterator[int]:
    """All ports, from one on that each home has to itself as far as can be.

    What served is brought back on its own port only. Were all homes to begin with the first, one
    would take the port of another's deployment whenever that is down for a moment.
    """
    homes = (_LAST_PORT + 1 - _FIRST_PORT) // _PORTS_OF_A_HOME
    first = _FIRST_PORT + zlib.crc32(bytes(home)) % homes * _PORTS_OF_A_HOME
    yield from range(first, _LAST_PORT + 1)
    yield from range(_FIRST_PORT, first)
