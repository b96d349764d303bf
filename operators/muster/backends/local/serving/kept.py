"""What outlives a keeper: open files that it has in common with its guardian, which becomes the next keeper (ADR 73).

Model servers go on while no keeper lives: they answer users on a socket that stays open, and find the next keeper by
sending it a line for its commands through a pair of sockets that has no name. The kernel ends them when keeper and
guardian are both gone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from typing import NamedTuple

from muster.backends.local.serving.folder import DeploymentFolder
from muster.backends.local.serving.guardian import COMMAND
from muster.backends.local.serving.process import INHERITED, chosen_variables
from muster.core.errors import BackendError
from muster.core.settings import Settings

# What uv needs to build an image's environment, beside its own; of all else in a shell, secrets too, a keeper knows nothing.
_PASSED = (
    *INHERITED,
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
    *("SOURCE_DATE_EPOCH", "SSL_CERT_DIR", "SSL_CERT_FILE", "XDG_CACHE_HOME"),
)


class KeptNumbers(NamedTuple):
    """The numbers of these files.

    :param lock: holds the deployment's lock as long as one of the two lives.
    :param public: the users' socket; the keeper binds it. :param grpc: that of gRPC, likewise.
    :param mailbox: gives the keeper the lines of servers. :param post: their end of it.
    :param leash: a pipe that holds each server. :param hand: its other end, which no server has.
    """

    lock: int
    public: int
    grpc: int
    mailbox: int
    post: int
    leash: int
    hand: int


class Guardian:
    """The guardian of this process, a keeper: a child that has it started again when it dies.

    :param pid: of the guardian that there is; below 1 there is none.
    """

    def __init__(self, settings: Settings, name: str, pid: int, kept: KeptNumbers) -> None:
        numbers = map(str, (os.getpid(), *kept))
        self._words = [*COMMAND, str(settings.home), str(settings.cache), name, "guard", *numbers]
        self._kept = kept
        self._pid = pid

    def replace_lost(self) -> None:
        """Start another one where it has died; never waits. :raises OSError: it cannot be started."""
        if not self._lives():
            self._pid = -1
            given = [(os.POSIX_SPAWN_DUP2, number, number) for number in self._kept]
            self._pid = os.posix_spawn(self._words[0], self._words, os.environ, file_actions=given)

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


def start_keeper(
    settings: Settings, folder: DeploymentFolder, lock: int, bound: socket.socket | None = None
) -> None:
    """Start a keeper and its guardian; they inherit the deployment's lock, so there are never two, and perhaps its port.

    :raises BackendError: it cannot be started.
    """
    with contextlib.ExitStack() as opened:
        try:
            public, grpc = (
                bound or opened.enter_context(socket.socket()),
                opened.enter_context(socket.socket()),
            )
            mailbox, post = map(
                opened.enter_context, socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            )
            leash, hand = os.pipe()
            opened.callback(os.close, leash)
            opened.callback(os.close, hand)
            inherited = KeptNumbers(
                lock, public.fileno(), grpc.fileno(), mailbox.fileno(), post.fileno(), leash, hand
            )
            words = [settings.home, settings.cache, folder.name, "keep", *inherited]
            with (folder.path / "keeper.log").open("ab") as log:
                subprocess.run(
                    [*COMMAND, *map(str, words)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=inherited,
                    cwd="/",
                    env=chosen_variables(
                        [*_PASSED, *(name for name in os.environ if name.startswith("UV_"))]
                    ),
                    start_new_session=True,
                    check=True,
                )
        except (OSError, subprocess.CalledProcessError) as error:
            raise BackendError(f"deployment {folder.name}: its keeper cannot be started ({error})") from error
