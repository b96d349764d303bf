"""A process that has imported the supervisor and forks one for each job, for as long as a run goes on.

An interpreter that starts and imports the supervisor takes 0.1 s of CPU for each job of a run. The nursery is started
once, by a process whose forks will start jobs (:func:`open_nursery`), and dies with it; the supervisors do not. It
passes nothing from job to job: it is handed open files alone, and what a supervisor is told, secrets with it, goes
over one of these to the fork itself. Until it has imported all, and where it does not answer, supervisors are
started without it.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import muster
from muster.backends.local.processes import JOB_VARIABLE, MARK_VARIABLE
from muster.core.interpreters import python_command

_MAIN = (
    "import sys\n"
    "sys.path.insert(0, sys.argv[1])\n"
    "from muster.backends.local.nursery_process import serve\n"
    "serve(int(sys.argv[2]), int(sys.argv[3]))\n"
)
READY = b"r"
PATIENCE_SECONDS = 10.0  # of who asks for a supervisor


class Nursery:
    """The nursery's process, as those that start jobs see it; forks of this process use it, too."""

    def __init__(self, home: Path) -> None:
        self._asked, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._asked.settimeout(PATIENCE_SECONDS)
        with its:
            words = (str(its.fileno()), str(os.getpid()), str(home))
            # A supervisor that is started without it says what is wrong.
            self._process = start_python(_MAIN, *words, output=subprocess.DEVNULL, given=[its.fileno()])
        self._ended = os.pidfd_open(self._process.pid)

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    @property
    def ready(self) -> bool:
        """Whether it has imported what its forks are, which it says once, for all who look.

        Who asked before would wait for that.
        """
        looked = select.poll()
        looked.register(self._asked, select.POLLIN)
        try:
            return bool(looked.poll(0)) and self._asked.recv(1, socket.MSG_PEEK) == READY
        except OSError:  # it was killed
            return False

    def fork(self, claim: int, log: int) -> socket.socket | None:
        """Return a connection to a new supervisor, which waits there to be told; None where there is none to be had.

        A nursery that does not answer is ended: it must not keep the claim. A fork of it that answers too late finds
        the connection closed, and ends.

        :param claim: the open file that holds the claim's lock.
        :param log: where the supervisor says what is wrong with itself.
        """
        if not self.ready:
            return None
        ours, its = socket.socketpair()
        ours.settimeout(PATIENCE_SECONDS)
        try:
            with its:
                socket.send_fds(self._asked, [READY], [its.fileno(), claim, log])
            answered = ours.recv(1) == READY
        except OSError:  # it was killed, or hangs
            answered = False
        if not answered:
            ours.close()
            self._kill()
            return None
        ours.settimeout(None)
        return ours

    def close(self) -> None:
        """End it. Supervisors that it has forked go on."""
        self._kill()
        self._process.wait()
        os.close(self._ended)
        self._asked.close()

    def _kill(self) -> None:
        with suppress(ProcessLookupError):  # it has ended
            signal.pidfd_send_signal(self._ended, signal.SIGKILL)


_open: list[Nursery] = []


@contextmanager
def open_nursery(home: Path) -> Iterator[None]:
    """Have a nursery for the jobs that this process and its forks start in the block.

    :param home: whose jobs these are, for a person who looks at processes.
    """
    with suppress(OSError):  # the machine can start no process now: jobs wait for one themselves
        _open.append(Nursery(home))
    try:
        yield
    finally:
        while _open:
            _open.pop().close()


def nursery() -> Nursery | None:
    """Return this process's, or that of the process of which it is a fork."""
    return _open[-1] if _open else None


def submitters_variables() -> dict[str, str]:
    """Return this process's variables for a supervisor, which is no part of a job that this process may be in."""
    return {name: text for name, text in os.environ.items() if name not in (JOB_VARIABLE, MARK_VARIABLE)}


def start_python(main: str, *words: str, output: int, given: Sequence[int]) -> subprocess.Popen[bytes]:
    """Start a Python that knows nothing of a job that this process may be in.

    :param main: its program; the folder of muster is the first of its words. :param given: the open files that it has.
    """
    root = str(Path(muster.__file__).parent.parent)
    return subprocess.Popen(
        python_command("-c", main, root, *words, isolated=True),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        cwd="/",
        env=submitters_variables(),
        pass_fds=given,
    )
