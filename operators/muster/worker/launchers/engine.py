"""What launchers of data engines share: the first replica drives, and the others work for it until it has ended.

A worker's rank is a small program that runs the engine's own worker, and runs it again where it ends: the engine survives
that, and the line in which the rank says so ends up in the job's record (:mod:`muster.volumes.survived`). It begins another one
once the engine's head listens, which ends with the driver, or after a while, and says that one was lost only of a worker that has lived a while or got
SIGKILL, which comes from outside: any other may never have come. It ends the engine's worker, and itself well, once the first replica has
sealed: its part-manifest is in the folder that all replicas share. A worker that ends soon after each start never comes, and is an error.
"""

from __future__ import annotations

import os
import secrets
import socket
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from importlib.util import find_spec

from muster.core.errors import SpecError
from muster.core.patience import Patience
from muster.core.replica import LOOPBACK, Replica
from muster.worker.rendezvous import reached

_ENGINE_MEMORY = 0.5
"""The part of a replica's memory that an engine's JVM or worker may fill; the rest is for Python and the system."""

_SOCKET_BYTES = 107
"""What the path of a socket may have (unix(7))."""
_ENGINES_OWN_BYTES = 72
"""What engines add to the path of a folder for their sockets: Ray the name of a session, and of a socket in it."""
_SECRET, _SECRET_SECONDS = "engine-secret", 60.0
HEAD_SECONDS = 120.0
"""What an engine's head gets to start."""
FREE_SECONDS = 5.0
_HEAD = "the engine's head, beside the first replica,"
LIMITS = "20 5 50 1 0.2"
"""Of a worker: seconds from its start within which an end is early; early ends in a row, with an error and with status 0, that end the replica; seconds
before the next start, and between two looks."""

# prctl 1 is PR_SET_PDEATHSIG: what a rank starts does not outlive it.
_KEEPS = """
import ctypes, os, signal, socket, subprocess, sys, time

def dies():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)

def out_of_memory():
    for path in "/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control":  # of a pod's container
        try:
            with open(path) as file:
                return next((int(line.split()[1]) for line in file if line.startswith("oom_kill ")), 0)
        except OSError:
            pass  # the other one, or none
    return 0

def goes_on():
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError:
        return False
    return True

# A worker that ends early too often in a row never comes. Status 0 has a higher limit: a script may restart Dask's workers.
soon, most, most_well, pause, pace = map(float, sys.argv[4].split())
(sealed, host, port), words, told, ended = sys.argv[1:4], sys.argv[5:], [], {True: 0, False: 0}
signal.signal(signal.SIGTERM, lambda *_: told.append(True))
while not told and not os.path.exists(sealed):
    begun, killed = time.monotonic(), out_of_memory()
    engine = subprocess.Popen(words, preexec_fn=dies)
    while engine.poll() is None and not told and not os.path.exists(sealed):
        time.sleep(pace)  # of looking for the end
    if engine.poll() is None:
        engine.terminate()
        try:
            engine.wait(5)
        except subprocess.TimeoutExpired:
            engine.kill()
            engine.wait()
    elif not told and not os.path.exists(sealed):
        at, status = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()), engine.returncode
        early, well = time.monotonic() - begun < soon, status == 0
        ended = {**ended, well: ended[well] + 1} if early else {True: 0, False: 0}
        if ended[well] == (most_well if well else most):
            sys.exit(f"the engine's worker never comes: it ended {ended[well]} times within {soon:g} s of its start, with exit status {status}")
        names = {number.value: number.name for number in signal.Signals}
        how = f"exit status {status}" if status > 0 else f"killed by {names.get(-status, -status)}"
        how += ", out of memory" if status == -9 and out_of_memory() > killed else ""
        time.sleep(pause)  # one that ends at its start is not begun all the time
        latest = time.monotonic() + soon  # a worker that never reaches a living head is begun anew, and ends the replica
        while not told and not os.path.exists(sealed) and not goes_on() and time.monotonic() < latest:
            time.sleep(pace)  # the driver has ended, or the gang starts again: either ends this rank
        if told or os.path.exists(sealed):
            continue
        if (status == -signal.SIGKILL or (status and not early)) and goes_on():
            print(f"the engine's worker was lost at {at} ({how}), and the driver goes on: another one begins", flush=True)
        else:
            print(f"the engine's worker ended with exit status {status}: another one begins", flush=True)
sys.exit(143 if told else 0)
"""


def kept(replica: Replica, words: Sequence[str], *, host: str) -> list[str]:
    """Return the words of a rank that runs an engine's worker until the first replica has ended well.

    :param host: where the engine's head listens.
    """
    head = (host, str(replica.master_port))
    return [sys.executable, "-u", "-c", _KEEPS, _firsts_seal(replica), *head, LIMITS, *words]


def await_head(replica: Replica, *, host: str) -> None:
    """Wait in a worker's replica until the engine's head answers, or the first replica has sealed.

    The driver may end well before a slow node has the image: the worker's rank then finds that nothing is left to do.

    :raises OSError: neither comes.
    """
    reached(host, replica.master_port, over=lambda: os.path.exists(_firsts_seal(replica)))


def _firsts_seal(replica: Replica) -> str:
    return replica.seal_of(replica.role, 0)


def lead(replica: Replica, words: Sequence[str], environment: Mapping[str, str], *, host: str) -> int:
    """Start the engine's head beside the first replica's rank, wait until it listens, and return its pid.

    It dies with the worker.

    :raises OSError: it ended before, does not listen after :data:`HEAD_SECONDS`, or another program listens in its place.
    """
    # The head of the attempt before may still be ending.
    free = Patience(FREE_SECONDS, first=0.05, longest=0.5)
    while _listens(host, replica.master_port):
        if not free.wait():
            raise OSError(f"{_HEAD} cannot listen at {host}:{replica.master_port}: another program does")
    die = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execv(sys.argv[1], sys.argv[1:])"
    pid = os.posix_spawn(sys.executable, [sys.executable, "-c", die, *words], dict(environment))
    patience = Patience(HEAD_SECONDS, first=0.05, longest=0.2)
    while True:
        listens = _listens(host, replica.master_port)
        ended, status = os.waitpid(pid, os.WNOHANG)  # after the answer, which may be another program's
        if ended:
            code = os.waitstatus_to_exitcode(status)
            raise OSError(f"{_HEAD} ended at its start with exit status {code}; its lines are above")
        if listens:
            return pid
        if not patience.wait():
            raise OSError(f"{_HEAD} does not listen at {host}:{replica.master_port} after {HEAD_SECONDS:g} s")


def _listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=5).close()
    except OSError:
        return False
    return True


def serves(replica: Replica) -> bool:
    """Whether the engine's head still answers, for the first replica."""
    return _listens(replica.master_address, replica.master_port)


def package(name: str, *, image: str, least: tuple[int, int] = (0, 0)) -> str:
    """Return the folder of a package of the image. :raises SpecError: it is not there, or older than the release `least`."""
    found = find_spec(name)
    if found is None or not found.submodule_search_locations:
        raise SpecError(
            f"image {image} has no {name}: add it to the image's requirements, or name another image"
        )
    if least > (0, 0):
        there = version(name)
        if tuple(map(int, there.split(".")[:2])) < least:
            raise SpecError(
                f"image {image} has {name} {there}: need {least[0]}.{least[1]} or newer, lock the image again with it"
            )
    return str(found.submodule_search_locations[0])


def free_port() -> int:
    """Return a port of loopback that is free now."""
    with socket.create_server((LOOPBACK, 0)) as door:
        port: int = door.getsockname()[1]
    return port


def own_address(replica: Replica) -> str:
    """Return the address at which other replicas reach this one."""
    return LOOPBACK if replica.master_address == LOOPBACK else socket.gethostbyname(socket.gethostname())


def memory_mib(replica: Replica, share: float = _ENGINE_MEMORY) -> int:
    """Return a share of the replica's memory."""
    return max(256, int(replica.job_role.resources.memory_gib * 1024 * share))


def cores(replica: Replica) -> int:
    """Return how many tasks a worker runs at once."""
    return max(1, int(replica.job_role.resources.cpus))


def make_secret(replica: Replica) -> str:
    """Return what only this start of the gang knows, in the folder that its replicas share; for the first replica."""
    made, path = secrets.token_hex(32), _secret(replica)
    part = f"{path}.part"
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="ascii") as file:
        file.write(made)
    os.replace(part, path)
    return made


def read_secret(replica: Replica) -> str:
    """Return what :func:`make_secret` made; for other replicas, after :func:`await_head`.

    Nothing is returned where the first one has sealed and left none: there is nothing to connect to.

    :raises OSError: it is not there after a minute.
    """

    def read() -> str:
        try:
            with open(_secret(replica), encoding="ascii") as file:
                return file.read()
        except FileNotFoundError:
            if os.path.exists(_firsts_seal(replica)):
                return ""
            raise

    return Patience(_SECRET_SECONDS, first=0.1, longest=1.0).persist(read)  # on NFS it may be seen later


def reachable(folder: str) -> str:
    """Make a folder, and return a path to it that leaves room for the names of sockets below it.

    A long one is reached by a descriptor of this process, which keeps it open to its end.
    """
    os.makedirs(folder, exist_ok=True)
    if len(os.fsencode(folder)) + _ENGINES_OWN_BYTES <= _SOCKET_BYTES:
        return folder
    return f"/proc/{os.getpid()}/fd/{os.open(folder, os.O_RDONLY | os.O_DIRECTORY)}"


def _secret(replica: Replica) -> str:
    return os.path.join(os.path.dirname(replica.sealed), _SECRET)
