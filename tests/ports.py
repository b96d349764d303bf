"""Ports for the tests' servers, which nothing else of this machine is given meanwhile."""

from __future__ import annotations

import random
import socket
from contextlib import suppress
from pathlib import Path

_LEAST, _MOST = 20_000, 65_535


def free_port() -> int:
    """A port of loopback on which nothing listens, and that no other test is given as long as this process lives.

    It is none of those that the kernel gives to connections: between the moment in which a port is found free and the one in
    which its server listens, or is started again, a connection of any other test could take it.
    """
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    ports = [*range(_LEAST, low), *range(high + 1, _MOST + 1)] or [*range(_LEAST, _MOST + 1)]
    first = random.Random().randrange(len(ports))  # of its own: a test may have seeded the common one
    for port in ports[first:] + ports[:first]:
        claim = socket.socket(socket.AF_UNIX)
        with suppress(OSError):  # another process has claimed it, or listens on it
            claim.bind(f"\0muster-tests-port-{port}")
            socket.create_server(("127.0.0.1", port)).close()
            claim.detach()  # it is held until this process ends
            return port
        claim.close()
    raise OSError(f"every port from {_LEAST} is taken")
