"""What launchers of data engines share: the first replica drives, and the others work for it until it has ended.

A worker's rank is a small program that runs the engine's own worker, and runs it again where it ends: the engine survives
that. It ends the engine's worker, and itself well, once the first replica has sealed: its part-manifest is in the folder that
all replicas share.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec

from muster.core.errors import SpecError
from muster.core.replica import LOOPBACK, Replica

ENGINE_MEMORY = 0.5
"""The part of a replica's memory that an engine's JVM or worker may fill; the rest is for Python and the system."""

# prctl 1 is PR_SET_PDEATHSIG: what a rank starts does not outlive it.
_KEEPS = """
import ctypes, os, signal, subprocess, sys, time

def dies():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)

sealed, words, told = sys.argv[1], sys.argv[2:], []
signal.signal(signal.SIGTERM, lambda *_: told.append(True))
while not told and not os.path.exists(sealed):
    engine = subprocess.Popen(words, preexec_fn=dies)
    while engine.poll() is None and not told and not os.path.exists(sealed):
        time.sleep(0.2)  # the pace of looking for the end
    if engine.poll() is None:
        engine.terminate()
        try:
            engine.wait(5)
        except subprocess.TimeoutExpired:
            engine.kill()
            engine.wait()
    elif not told and not os.path.exists(sealed):
        print(f"the engine's worker ended with exit status {engine.returncode}: another one begins", flush=True)
        time.sleep(1)  # one that ends at its start is not begun all the time
sys.exit(143 if told else 0)
"""


def drives(replica: Replica) -> bool:
    """Whether this is the replica that runs what the author wrote."""
    return replica.first_rank == 0


def kept(replica: Replica, words: Sequence[str]) -> list[str]:
    """Return the words of a rank that runs an engine's worker until the first replica has ended well."""
    folder, name = os.path.split(replica.sealed)
    first = name.replace(f"{replica.role}-{replica.index}.", f"{replica.role}-0.", 1)
    return [sys.executable, "-u", "-c", _KEEPS, os.path.join(folder, first), *words]


def start(words: Sequence[str], environment: Mapping[str, str]) -> int:
    """Start a process beside the ranks; return its pid. It dies with the worker."""
    die = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execv(sys.argv[1], sys.argv[1:])"
    return os.posix_spawn(sys.executable, [sys.executable, "-c", die, *words], dict(environment))


def package(name: str, *, image: str) -> str:
    """Return the folder of a package of the image. :raises SpecError: it is not there."""
    found = find_spec(name)
    if found is None or not found.submodule_search_locations:
        raise SpecError(
            f"image {image} has no {name}: add it to the image's requirements, or name another image"
        )
    return str(found.submodule_search_locations[0])


def own_address(replica: Replica) -> str:
    """Return the address at which other replicas reach this one."""
    return LOOPBACK if replica.master_address == LOOPBACK else socket.gethostbyname(socket.gethostname())


def memory_mib(replica: Replica, share: float = ENGINE_MEMORY) -> int:
    """Return a share of the replica's memory."""
    return max(256, int(replica.job_role.resources.memory_gib * 1024 * share))


def cores(replica: Replica) -> int:
    """Return how many tasks a worker runs at once."""
    return max(1, int(replica.job_role.resources.cpus))
