"""Waits until the name of another replica resolves, which may be late."""

from __future__ import annotations

import socket

from muster.core.patience import Patience
from muster.worker.ranks import say

NAME_SECONDS = 60.0
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
