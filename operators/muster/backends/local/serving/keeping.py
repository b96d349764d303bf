"""Starts keepers, and sees that they end: what whoever deploys does about another process."""

from __future__ import annotations

import socket
import subprocess
import sys
import time

from muster.backends.local.serving.folder import DeploymentFolder
from muster.core.errors import BackendError
from muster.core.settings import Settings

RETIRE_SECONDS = 45.0  # more than a keeper gives its servers to finish
KILL_SECONDS = 2.0

# The keeper must outlive this process and not be its zombie: the first Python forks it and is gone at once.
_DETACH = "import os, runpy; os.fork() and os._exit(0); runpy.run_module('muster.backends.local.serving.keeper', run_name='__main__')"


def start(settings: Settings, folder: DeploymentFolder, handle: int, door: socket.socket | None) -> None:
    """Start a keeper; it inherits its lock, so there are never two, and perhaps its port.

    :raises BackendError: it cannot be started.
    """
    inherited = (handle, *([door.fileno()] if door else []))
    words = [settings.home, settings.cache, folder.name, *inherited]
    try:
        with (folder.path / "keeper.log").open("ab") as log:
            subprocess.run(
                [sys.executable, "-P", "-c", _DETACH, *map(str, words)],
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
