"""Deletes old checkpoints while a gang trains, so that as many stay as the author asked for (``keep=``).

Every entry at the top of the folder of checkpoints is one checkpoint, but links, and names that begin with a dot. One of
which a file was written in the last :data:`QUIET_SECONDS` may still be written: it counts as none, so that a crash in the
middle of it leaves whole ones.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from muster.core.replica import Replica

EVERY_SECONDS = 10.0
QUIET_SECONDS = 10.0
_GOING = ".muster-deletes-"


class Pruning:
    """The checkpoints of one attempt; the first replica prunes them.

    :param say: writes a line to the log.
    :param now: seconds since the epoch, as the file system counts them.
    """

    def __init__(
        self, replica: Replica, *, say: Callable[[str], None], now: Callable[[], float] = time.time
    ) -> None:
        self._folder, self._keep = replica.checkpoints, replica.spec.keep
        self._say, self._now = say, now
        self._told = False
        self._due = time.monotonic() if self._keep and replica.first_rank == 0 else float("inf")

    def left(self) -> float:
        """Seconds until :meth:`look` is due."""
        return self._due - time.monotonic()

    def look(self, *, now: bool = False, ended: bool = False) -> None:
        """Delete what is too old, if it is due or `now`.

        :param ended: all ranks have ended, so that every checkpoint is whole.
        """
        if self._due == float("inf") or not (now or ended or time.monotonic() >= self._due):
            return
        with suppress(FileNotFoundError):  # a rank deletes them too
            self._prune(float("inf") if ended else self._now() - QUIET_SECONDS)
        self._due = time.monotonic() + EVERY_SECONDS

    def _prune(self, quiet: float) -> None:
        whole = sorted(
            (written, name) for name, written in self._checkpoints() if written < quiet
        )  # the oldest first
        for _, name in whole[: -self._keep]:
            try:
                self._delete(name)
            except OSError as error:
                self._tell(f"checkpoint {name!r:.120} cannot be deleted: {error.strerror}")

    def _checkpoints(self) -> Iterator[tuple[str, float]]:
        """Yield each checkpoint and when it was last written; finish what a killed worker was deleting."""
        with os.scandir(self._folder) as entries:
            found = list(entries)
        for entry in found:
            if entry.name.startswith(_GOING):
                shutil.rmtree(entry.path, ignore_errors=True)
            elif not entry.name.startswith(".") and not entry.is_symlink():
                yield entry.name, max(_written(entry))

    def _delete(self, name: str) -> None:
        """Delete a checkpoint; no rank ever finds a part of it under its name."""
        path = os.path.join(self._folder, name)
        if not os.path.isdir(path):
            os.unlink(path)
            return
        going = os.path.join(self._folder, _GOING + name)
        os.rename(path, going)
        shutil.rmtree(going)

    def _tell(self, text: str) -> None:
        if not self._told:
            self._told = True
            self._say(f"[muster] warning: {text}")


def _written(entry: os.DirEntry[str]) -> Iterator[float]:
    """Yield the times of an entry and of everything below it."""
    yield entry.stat(follow_symlinks=False).st_mtime
    if entry.is_dir(follow_symlinks=False):
        with os.scandir(entry.path) as entries:
            for each in list(entries):
                yield from _written(each)
