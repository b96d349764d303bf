"""Free space of disks, and the commands that make room."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from dataclasses import dataclass

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
CLAIM = "the store's claim"
_COMFORTABLE_BYTES = 2 << 30
SCARCE_BYTES = 512 << 20
_MAKE_ROOM = (
    "make room{then}: `muster jobs gc` shows what ended jobs still hold{held}, `muster volumes gc` "
    "what old versions do; each deletes it with --yes"
)


@dataclass(frozen=True, kw_only=True)
class Room:
    """The free space of one disk.

    :param disk: its name in messages: ``the disk at /home``, ``the store's claim``.
    :param files_left: how many more files fit; None where the file system sets no limit.
    """

    disk: str
    free_bytes: int
    total_bytes: int
    files_left: int | None = None

    @classmethod
    def of(cls, path: str | os.PathLike[str], *, disk: str = "") -> Room:
        """Measure the disk that holds `path`, which need not exist yet.

        :raises OSError: it cannot be measured.
        """
        there = os.path.abspath(path)
        while not os.path.exists(there):
            there = os.path.dirname(there)
        found = os.statvfs(there)
        return cls(
            disk=disk or f"the disk at {_mount_point(there)}",
            free_bytes=found.f_bavail * found.f_frsize,
            total_bytes=found.f_blocks * found.f_frsize,
            files_left=found.f_favail if found.f_files else None,
        )

    @property
    def scarce(self) -> bool:
        """Whether jobs that write here will soon fail."""
        return self.free_bytes < SCARCE_BYTES or self.files_left == 0

    @property
    def comfortable(self) -> bool:
        """Whether no message needs to mention it."""
        return self.free_bytes >= _COMFORTABLE_BYTES and self.files_left != 0

    @property
    def warning(self) -> str:
        """The warning before the disk is full; empty where there is room."""
        if self.comfortable:
            return ""
        return f"{self}: jobs fail when it is full; {_MAKE_ROOM.format(then='', held='')}"

    def __str__(self) -> str:
        """``the disk at /home has 12.0 MiB free of 190.0 MiB``."""
        said = f"{self.disk} has {size(self.free_bytes)} free of {size(self.total_bytes)}"
        return f"{said} and no room for another file" if self.files_left == 0 else said


def make_room(checkpoints: str | os.PathLike[str] | None = None) -> str:
    """Return the commands that make room where the store is full, for an advice.

    :param checkpoints: the folder of checkpoints that the job keeps: their size is added.
    """
    kept = 0 if checkpoints is None else size_of(checkpoints)
    return _MAKE_ROOM.format(
        then=", then run again", held=f" (checkpoints of this one: {size(kept)})" if kept else ""
    )


def size_of(folder: str | os.PathLike[str]) -> int:
    """Return the bytes of all files below a folder; 0 where there is none."""
    total = 0
    for inner, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # it is gone by now, or only its owner may read it
                total += os.lstat(os.path.join(inner, name)).st_size
    return total


def is_full(error: BaseException) -> bool:
    """Whether an error, or its cause, says that a disk or quota is full."""
    cause = error if isinstance(error, OSError) else error.__cause__
    return isinstance(cause, OSError) and cause.errno in FULL


def size(size_bytes: float) -> str:
    """Return bytes for people, in binary units: ``34.1 MiB``."""
    amount, unit = float(size_bytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(amount) < 1024 or unit == "TiB":
            break
        amount /= 1024
    return f"{amount:.0f} B" if unit == "B" else f"{amount:.1f} {unit}"


def _mount_point(path: str) -> str:
    path = os.path.realpath(path)
    while not os.path.ismount(path):
        path = os.path.dirname(path)
    return path
