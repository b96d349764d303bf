"""Waits until another replica has a name, which may be late, or answers."""

from __future__ import annotations

import socket
from collections.abc import Callable

from muster.core.patience import Patience
from muster.worker.ranks import say

NAME_SECONDS, TIMEOUT_SECONDS = 60.0, 600
RETRY_SECONDS = 0.2


def await_name(host: str) -> None:
    """Wait until a name resolves, which may be after the pod has an address: some frameworks ask once.

    A name that is unknown after :data:`NAME_SECONDS` is no error: rank 0 may have ended, and the other ranks
    do not need it then.
    """
    try:
        Patience(NAME_SECONDS, first=RETRY_SECONDS).persist(lambda: socket.getaddrinfo(host, None))
    except OSError as error:
        say(f"rank 0's name {host} is not known after {NAME_SECONDS:g} s, going on: {error}")


def reached(host: str, port: int, *, over: Callable[[], bool] = lambda: False) -> str:
    """Return the address at which rank 0's replica answers.

    A name may resolve late, or still to a pod that is gone: each try looks it up again.

    :param over: tells that rank 0 is not needed any more; the address is empty then.

    :raises OSError: it does not answer within :data:`TIMEOUT_SECONDS`.
    """

    def answering() -> str:
        if over():
            return ""
        address = socket.gethostbyname(host)
        socket.create_connection((address, port), timeout=5).close()
        return address

    try:
        return Patience(TIMEOUT_SECONDS, first=RETRY_SECONDS).persist(answering)
    except OSError as error:
        raise OSError(
            f"rank 0 does not serve its meeting place at {host}:{port} "
            f"after {TIMEOUT_SECONDS} s ({error}); see the log of its replica"
        ) from error
