"""Where a gang meets: at the name of rank 0's replica, and the gang's fixed master port.

Torch's rank 0 serves that port itself; what its ranks need is that the name is known. Horovod's meeting
place, without ssh, is served by rank 0's replica. Its port is open before any rank starts, so who comes
early waits instead of failing. The server is the image's own Horovod
(``horovod/runner/http/http_server.py``), in a process beside the ranks.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from muster.core.replica import Replica
from muster.worker.launchers import HOROVOD_TIMEOUT_SECONDS, LOOPBACK, host_name
from muster.worker.ranks import say

NAME_SECONDS = 60.0
_RETRY_SECONDS = 0.2

T = TypeVar("T")

# Runs with the open port as its stdin, and dies with the worker (prctl 1 is PR_SET_PDEATHSIG).
_SERVER = """
import ctypes, os, socket, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() != int(sys.argv[3]):
    sys.exit(1)
from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

server = RendezvousHTTPServer(("127.0.0.1", 0), RendezvousHandler, 0)
server.socket.close()
server.socket = socket.socket(fileno=0)
server.init(get_host_assignments(parse_hosts(sys.argv[1]), int(sys.argv[2])))
server.serve_forever()
"""


def await_name(host: str) -> None:
    """Wait until a name is known, a second after its pod has an address, since some frameworks ask once.

    One that is unknown after :data:`NAME_SECONDS` is no error: rank 0 may have ended, and all others need
    nothing of it.
    """
    try:
        _persist(lambda: socket.getaddrinfo(host, None), seconds=NAME_SECONDS)
    except OSError as error:
        say(f"rank 0's name {host} is not known after {NAME_SECONDS:g} s, going on: {error}")


def meet(replica: Replica, environments: Sequence[dict[str, str]]) -> int | None:
    """Serve the meeting place where rank 0 is ours and return its pid; elsewhere wait until it is there.

    Its address is added to each rank's environment: gloo takes no names.

    :raises OSError: the port is taken, or nobody serves it within :data:`HOROVOD_TIMEOUT_SECONDS`.
    """
    server, address = None, LOOPBACK
    if replica.first_rank == 0:
        server = _serve(replica, environments[0])
    else:
        address = _reached(replica.master_address, replica.master_port)
    for environment in environments:
        environment["HOROVOD_GLOO_RENDEZVOUS_ADDR"] = address
    return server


def _serve(replica: Replica, environment: Mapping[str, str]) -> int:
    at = replica.master_address if replica.master_address == LOOPBACK else ""
    roles = [role for role in replica.spec.roles for _ in range(role.replicas)]
    hosts = ",".join(f"{host_name(number)}:{role.ranks}" for number, role in enumerate(roles))
    with socket.create_server((at, replica.master_port), backlog=1024) as door:
        return os.posix_spawn(
            sys.executable,
            [sys.executable, "-c", _SERVER, hosts, str(replica.spec.world_size), str(os.getpid())],
            dict(environment),
            file_actions=[(os.POSIX_SPAWN_DUP2, door.fileno(), 0)],
        )


def _reached(host: str, port: int) -> str:
    """Return the address at which the meeting place answers.

    A name may be known late, or still be that of a pod that is gone: it is looked up for each try.
    """

    def answering() -> str:
        address = socket.gethostbyname(host)
        socket.create_connection((address, port), timeout=5).close()
        return address

    try:
        return _persist(answering, seconds=HOROVOD_TIMEOUT_SECONDS)
    except OSError as error:
        raise OSError(
            f"rank 0 does not serve its meeting place at {host}:{port} "
            f"after {HOROVOD_TIMEOUT_SECONDS} s ({error}); see the log of its replica"
        ) from error


def _persist(ask: Callable[[], T], *, seconds: float) -> T:
    """Ask until there is an answer. :raises OSError: there was none in that time."""
    limit = time.monotonic() + seconds
    while True:
        try:
            return ask()
        except OSError:
            if time.monotonic() > limit:
                raise
            time.sleep(_RETRY_SECONDS)
