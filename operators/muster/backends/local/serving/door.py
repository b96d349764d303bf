"""The public socket of a deployment: the keeper holds it, so that it outlives every model server."""

from __future__ import annotations

import errno
import socket
import time

from muster.core.errors import DeploymentError

WAIT_SECONDS = 3.0
ASK_SECONDS = 1.0
BACKLOG = 2048


class Door:
    """A port of 127.0.0.1: bound at first, so nobody else gets it, and open once something serves.

    :param inherited: the socket that whoever chose the port had bound already.
    """

    def __init__(self, port: int, inherited: socket.socket | None = None) -> None:
        self._port = port
        self._socket = inherited

    def bound(self) -> socket.socket:
        """Return the socket that servers inherit.

        :raises DeploymentError: somebody else has the port, and not only a server of ours that is dying.
        """
        deadline = time.monotonic() + WAIT_SECONDS
        while self._socket is None:
            door = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                door.bind(("127.0.0.1", self._port))
            except OSError as error:
                door.close()
                if time.monotonic() > deadline:
                    raise self._taken(error) from error
                time.sleep(0.05)
            else:
                self._socket = door
        return self._socket

    def open(self) -> None:
        """Let clients connect; they wait until a server accepts them. :raises DeploymentError: as above."""
        try:
            self.bound().listen(BACKLOG)
        except OSError as error:
            raise self._taken(error) from error

    def close(self) -> None:
        """Have clients refused, also those that wait."""
        if self._socket:
            self._socket.close()
            self._socket = None

    def _taken(self, error: OSError) -> DeploymentError:
        where = f"port {self._port} of 127.0.0.1"
        if error.errno == errno.EADDRINUSE and not _answered(self._port):
            return DeploymentError(
                f"{where} is not free yet: nothing listens there, and connections that have just ended hold it for at "
                "most a minute"
            )
        return DeploymentError(
            f"{where} cannot be listened on ({error.strerror}): end the process that does (`ss -ltnp 'sport = :{self._port}'` "
            "names it), or retire the deployment and deploy again for another port"
        )


def _answered(port: int) -> bool:
    """Whether a process listens on a port of 127.0.0.1."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=ASK_SECONDS).close()
    except ConnectionRefusedError:
        return False
    except OSError:
        pass  # it may be too busy to answer: somebody is there
    return True
