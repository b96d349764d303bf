"""``horovod``: the environment of horovodrun's gloo launcher (``horovod/runner/gloo_run.py``), without ssh.

The replica of rank 0 serves the rendezvous. Its port is open before any rank starts, so a rank that
starts early waits instead of failing. The server is the image's own Horovod
(``horovod/runner/http/http_server.py``), in a process beside the ranks.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping, Sequence

from muster.core.replica import LOOPBACK, Replica
from muster.worker.launchers.launcher import replica_number
from muster.worker.rendezvous import TIMEOUT_SECONDS, reached

# It gets the open port as stdin, and dies with the worker (prctl 1 is PR_SET_PDEATHSIG).
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


def environment(replica: Replica, local_rank: int, _base: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of ``horovod.init``; :func:`meet` adds the rendezvous server's address."""
    position, across = cross(replica, local_rank)
    interface = {"HOROVOD_GLOO_IFACE": "lo"} if replica.master_address == LOOPBACK else {}
    return {
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(replica.master_port),
        "HOROVOD_GLOO_TIMEOUT_SECONDS": str(TIMEOUT_SECONDS),
        "HOROVOD_HOSTNAME": _host_name(replica_number(replica)),
        "HOROVOD_RANK": str(replica.first_rank + local_rank),
        "HOROVOD_SIZE": str(replica.spec.world_size),
        "HOROVOD_LOCAL_RANK": str(local_rank),
        "HOROVOD_LOCAL_SIZE": str(replica.job_role.ranks),
        "HOROVOD_CROSS_RANK": str(position),
        "HOROVOD_CROSS_SIZE": str(across),
        **interface,
    }


def meet(replica: Replica, environments: Sequence[dict[str, str]]) -> list[int]:
    """Serve the rendezvous in the replica of rank 0; in the others wait until it is served.

    Its address is added to each rank's environment: gloo takes no names.

    :raises OSError: the port is taken, or nothing serves it within :data:`TIMEOUT_SECONDS`.
    """
    servers, address = list[int](), LOOPBACK
    if replica.first_rank == 0:
        servers.append(_serve(replica, environments[0]))
    else:
        address = reached(replica.master_address, replica.master_port)
    for environment in environments:
        environment["HOROVOD_GLOO_RENDEZVOUS_ADDR"] = address
    return servers


def cross(replica: Replica, local_rank: int) -> tuple[int, int]:
    """Return this rank's place among the ranks of the same local rank on all replicas, and their number."""
    before = total = 0
    for role in replica.spec.roles:
        if role.ranks > local_rank:
            if role.name == replica.role:
                before = total + replica.index
            total += role.replicas
    return before, total


def _host_name(number: int) -> str:
    """Return Horovod's name of a replica; two replicas on one machine are two hosts."""
    return f"replica-{number}"


def _serve(replica: Replica, environment: Mapping[str, str]) -> int:
    at = replica.master_address if replica.master_address == LOOPBACK else ""
    roles = [role for role in replica.spec.roles for _ in range(role.replicas)]
    hosts = ",".join(f"{_host_name(number)}:{role.ranks}" for number, role in enumerate(roles))
    with socket.create_server((at, replica.master_port), backlog=1024) as door:
        return os.posix_spawn(
            sys.executable,
            [sys.executable, "-c", _SERVER, hosts, str(replica.spec.world_size), str(os.getpid())],
            dict(environment),
            file_actions=[(os.POSIX_SPAWN_DUP2, door.fileno(), 0)],
        )
