"""The public socket of a deployment: the keeper holds it, so that it outlives every model server."""

from __future__ import annotations

import socket
import time

from muster.core.errors import DeploymentError

WAIT_SECONDS = 3.0
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
        return DeploymentError(
            f"port {self._port} of 127.0.0.1 cannot be listened on ({error.strerror}): end what holds it, or "
            "retire the deployment and deploy again for another port"
        )
