"""A file system of a test's own, which can be full, and whose power can be cut.

It is an ext4 on a loop device, shut down as xfstests does it (EXT4_IOC_SHUTDOWN, journal not flushed): from then on nothing
reaches the disk. Mounted again, it holds what a power cut leaves.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tests.waiting import until

_SHUTDOWN, _NO_LOG_FLUSH = 0x8004587D, 2  # ext4.h


class Disk:
    """An ext4 below a folder.

    :ivar mount: where it is mounted.
    """

    def __init__(self, folder: Path, *, size_mib: int) -> None:
        self._image, self.mount = folder / "disk.img", folder / "disk"
        self.mount.mkdir()
        with self._image.open("wb") as image:
            image.truncate(size_mib << 20)
        _tell("mkfs.ext4", "-q", "-F", self._image)
        self.power_on()

    def power_on(self) -> None:
        """Mount a copy of the disk: a process with the dead one in its mount namespace keeps that."""
        copy = self._image.with_name(f"{self._image.name}.copy")
        _tell("cp", "--sparse=always", self._image, copy)
        copy.rename(self._image)
        _tell("mount", "-o", "loop", self._image, self.mount)

    def fill(self) -> None:
        """Write until nothing more can be written: what the kernel keeps back for a while, too."""
        for _ in range(3):
            with suppress(OSError), (self.mount / "all").open("ab", buffering=0) as file:
                try:
                    while file.write(b"0" * 256):
                        pass
                finally:
                    os.fsync(file)

    def cut(self) -> None:
        """Let nothing reach the disk any more."""
        fd = os.open(self.mount, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, _SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
        finally:
            os.close(fd)

    def off(self) -> bool:
        """Unmount it; return whether no process uses it any more."""
        if os.path.ismount(self.mount):
            return subprocess.run(["umount", self.mount], capture_output=True, check=False).returncode == 0
        return True


@contextmanager
def own_disk(folder: Path, *, size_mib: int = 512) -> Iterator[Disk]:
    """Have a disk within the block; the test is skipped where none can be mounted."""
    if os.geteuid() != 0 or not shutil.which("mkfs.ext4"):
        pytest.skip("a file system of our own needs root and mkfs.ext4")
    try:
        disk = Disk(folder, size_mib=size_mib)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no loop device can be mounted here: {error.stderr.decode(errors='replace').strip()}")
    try:
        yield disk
    finally:
        assert until(disk.off), f"a process uses {disk.mount}"


def _tell(*words: str | Path) -> None:
    subprocess.run(words, check=True, capture_output=True)
