"""Starts keepers and their guardians, and sees that they end."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time

from muster.backends.local.serving import guardian
from muster.backends.local.serving.folder import DeploymentFolder
from muster.core.errors import BackendError
from muster.core.settings import Settings

RETIRE_SECONDS = 45.0  # more than a keeper gives its servers to finish
KILL_SECONDS = 2.0

# By its path and without site-packages: it takes 3 MB of memory so, a keeper 13.
_GUARDIAN = (sys.executable, "-I", "-S", guardian.__file__)


def start(settings: Settings, folder: DeploymentFolder, handle: int, door: socket.socket | None) -> None:
    """Start a keeper and its guardian; the keeper inherits its lock, so there are never two, and perhaps its port.

    :raises BackendError: it cannot be started.
    """
    inherited = (handle, *([door.fileno()] if door else []))
    words = [settings.home, settings.cache, folder.name, "keep", *inherited]
    try:
        with (folder.path / "keeper.log").open("ab") as log:
            subprocess.run(
                [*_GUARDIAN, *map(str, words)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=inherited,
                cwd="/",
                start_new_session=True,
                check=True,
            )
    except (OSError, subprocess.CalledProcessError) as error:
        raise BackendError(f"deployment {folder.name}: its keeper cannot be started ({error})") from error


class Guardian:
    """The guardian of this process, a keeper: a child that has it started again when it dies.

    :param pid: of the guardian that there is; below 1 there is none.
    """

    def __init__(self, settings: Settings, name: str, pid: int) -> None:
        self._words = [*_GUARDIAN, str(settings.home), str(settings.cache), name, "guard", str(os.getpid())]
        self._pid = pid

    def replace_lost(self) -> None:
        """Start another one where it has died; never waits. :raises OSError: it cannot be started."""
        if not self._lives():
            self._pid = -1
            self._pid = os.posix_spawn(self._words[0], self._words, os.environ)

    def dismiss(self) -> None:
        """End it, and return when it is gone."""
        if self._lives():
            os.kill(self._pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):  # where SIGCHLD is ignored the kernel reaps it
                os.waitpid(self._pid, 0)
        self._pid = -1

    def _lives(self) -> bool:
        with contextlib.suppress(ChildProcessError):
            return self._pid > 0 and os.waitpid(self._pid, os.WNOHANG) == (0, 0)
        return False


def await_end(folder: DeploymentFolder) -> None:
    """Return when the keeper is gone, and its servers with it; one that takes too long is killed.

    :raises BackendError: it does not end even so.
    """
    deadline = time.monotonic() + RETIRE_SECONDS
    while folder.kept():
        if time.monotonic() > deadline:
            keeper = folder.keeper()
            if keeper is None or not keeper.alive or time.monotonic() > deadline + KILL_SECONDS:
                raise BackendError(f"deployment {folder.name}: its keeper does not end; see {folder.path}")
            keeper.kill()
        time.sleep(0.02)
