"""Whether a model server still answers: a small request now and then, and nobody waits for its answer."""

from __future__ import annotations

import contextlib
import select
import socket
import time

PERIOD_SECONDS = 2.0
QUIET_SECONDS = 2.0
DEADLINE_SECONDS = 5.0
MISSES = 3

# Any answer will do, that nothing serves yet as well.
_REQUEST = b"GET /v2/health/ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


class Pulse:
    """Asks the private port of one server; :meth:`beats` is to be called every now and then.

    A server that is busy answers late, one that hangs never does: so a request has
    ``DEADLINE_SECONDS``, and ``MISSES`` of them in a row must have had no answer.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._connection: socket.socket | None = None
        self._due = 0.0
        self._missed = 0

    def beats(self) -> bool:
        """Look for the answer to the last request, or send the next; whether the server seems to live."""
        now = time.monotonic()
        if self._connection is not None and select.select([self._connection], [], [], 0)[0]:
            self._missed = 0  # looked for before the deadline is: we may be the ones who come late
            self.close()
            self._due = now + PERIOD_SECONDS
        elif now >= self._due:
            self._missed += self._connection is not None
            self.close()
            self._due = now + DEADLINE_SECONDS
            self._connection = self._ask()
            self._missed += self._connection is None
        return self._missed < MISSES

    @property
    def quiet(self) -> bool:
        """Whether an answer is due for ``QUIET_SECONDS``: it may hang, and only who has to should wait for it."""
        asked = self._due - DEADLINE_SECONDS
        return self._missed > 0 or (self._connection is not None and time.monotonic() > asked + QUIET_SECONDS)

    def _ask(self) -> socket.socket | None:
        """Send a request. The kernel takes it, also for a server that hangs, unless that one is gone."""
        with contextlib.suppress(OSError):
            connection = socket.create_connection(("127.0.0.1", self._port), timeout=DEADLINE_SECONDS)
            connection.sendall(_REQUEST)
            return connection
        return None

    def close(self) -> None:
        """Forget the request that is under way."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
