"""Has the requests of one deployment committed once their hour is over: the keeper starts this as a process, and never waits.

``python -m muster.backends.local.serving.collecting HOME CACHE NAME`` commits the hours that are over, and says why it cannot.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from os import getpid
from pathlib import Path

from muster.backends.request_log import Predictions
from muster.core.errors import MusterError
from muster.core.interpreters import python_command
from muster.core.linux import die_with
from muster.core.settings import Settings
from muster.volumes.folder import FolderStore
from muster.volumes.spool import Spool

PERIOD_SECONDS = 30.0
_LATE_SECONDS = 5.0  # a server writes each request within a second, and ends its file with the hour
LONGEST_PAUSE_SECONDS = 600.0


class LocalCollecting:
    """Starts the process when it is needed; :meth:`look` is called every now and then.

    :param say: is told why requests could not be committed.
    """

    def __init__(self, settings: Settings, name: str, say: Callable[[str], None]) -> None:
        self._spool = Spool(settings.home, name)
        self._words = python_command("-m", __name__, str(settings.home), str(settings.cache), name)
        self._say = say
        self._running: subprocess.Popen[str] | None = None
        self._pause, self._due = PERIOD_SECONDS, 0.0

    def look(self) -> None:
        """Start a commit if one is due, or hear how the last one ended; never waits."""
        now = time.monotonic()
        if self._running is not None:
            if self._running.poll() is None:
                return
            self._hear(self._running, now)
        elif now >= self._due:
            self._due = now + self._pause
            if self._spool.over(time.time() - _LATE_SECONDS):
                self._running = subprocess.Popen(
                    self._words,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    cwd="/",
                    text=True,
                    preexec_fn=partial(die_with, getpid()),
                )

    def _hear(self, ended: subprocess.Popen[str], now: float) -> None:
        assert ended.stderr is not None
        said = ended.stderr.read().strip().splitlines()
        ended.stderr.close()
        self._running = None
        self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS) if ended.returncode else PERIOD_SECONDS
        self._due = now + self._pause
        if ended.returncode:
            self._say(f"committing requests: {said[-1] if said else f'exit code {ended.returncode}'}")

    def stop(self) -> None:
        """End what runs; what it had not done is done by the next."""
        if self._running is not None:
            self._running.kill()
            self._running.wait()
            self._running = None


def main() -> None:
    """Commit the hours that are over."""
    home, cache, name = sys.argv[1:]
    settings = Settings(home=Path(home), cache=Path(cache))
    try:
        Predictions(settings, FolderStore(settings.store)).commit(name, only_over=True)
    except MusterError as error:
        sys.exit(" ".join(str(error).split()))


if __name__ == "__main__":
    main()
