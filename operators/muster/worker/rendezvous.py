"""Waits for the name of another replica, which its pod may get late."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import TypeVar

from muster.worker.ranks import say

NAME_SECONDS = 60.0
RETRY_SECONDS = 0.2

T = TypeVar("T")


def await_name(host: str) -> None:
    """Wait until a name is known, a second after its pod has an address, since some frameworks ask once.

    One that is unknown after :data:`NAME_SECONDS` is no error: rank 0 may have ended, and all others need
    nothing of it.
    """
    try:
        persist(lambda: socket.getaddrinfo(host, None), seconds=NAME_SECONDS)
    except OSError as error:
        say(f"rank 0's name {host} is not known after {NAME_SECONDS:g} s, going on: {error}")


def persist(ask: Callable[[], T], *, seconds: float) -> T:
    """Ask until there is an answer. :raises OSError: there was none in that time."""
    limit = time.monotonic() + seconds
    while True:
        try:
            return ask()
        except OSError:
            if time.monotonic() > limit:
                raise
            time.sleep(RETRY_SECONDS)
