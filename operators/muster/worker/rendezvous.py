"""Waits for the name of another replica, which its pod may get late."""

from __future__ import annotations

import socket

from muster.core.patience import Patience
from muster.worker.ranks import say

NAME_SECONDS = 60.0
_RETRY_SECONDS = 0.2


def await_name(host: str) -> None:
    """Wait until a name is known, a second after its pod has an address, since some frameworks ask once.

    One that is unknown after :data:`NAME_SECONDS` is no error: rank 0 may have ended, and all others need
    nothing of it.
    """
    try:
        Patience(NAME_SECONDS, first=_RETRY_SECONDS).persist(lambda: socket.getaddrinfo(host, None))
    except OSError as error:
        say(f"rank 0's name {host} is not known after {NAME_SECONDS:g} s, going on: {error}")
