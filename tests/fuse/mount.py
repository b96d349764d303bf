"""Mounts of :mod:`tests.fuse.filesystem`: each a process of its own, gone with the test that made it.

with mounted(server, tmp_path / "client", Faults(links=False)) as client: ...
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.fuse import library
from tests.fuse.filesystem import FAULTS, POWER, Faults
from tests.fuse.library import NoFuse

ROOT = Path(__file__).parents[2]
DEVICE = Path("/dev/fuse")
PATIENCE_SECONDS = 120.0
_MNT_DETACH = 2  # umount2(2)


@dataclass(frozen=True)
class Mount:
    """One client.

    :param root: where it is mounted. `server`: the folder it shows; who writes there is another client.
    """

    root: Path
    server: Path
    process: subprocess.Popen[bytes]

    def misbehave(self, faults: Faults) -> None:
        """Change what is amiss, from here on; `locks` stays as it was."""
        os.setxattr(self.root, FAULTS, faults.dumps().encode())

    def cut_power(self) -> None:
        """Lose the data of every file that this client wrote and that was not synced."""
        os.setxattr(self.root, POWER, b"cut")


@contextmanager
def mounted(server: Path, root: Path, faults: Faults | None = None) -> Iterator[Mount]:
    """Mount `server`, which is made if it is not there, at `root`, a folder that is made for it.

    Where that cannot be had the test is skipped, or fails with ``MUSTER_REQUIRE_FUSE=1``.
    """
    faults = faults or Faults()
    try:
        process = _start(server, root, faults)
    except NoFuse as error:
        if os.environ.get("MUSTER_REQUIRE_FUSE") == "1":
            raise
        pytest.skip(str(error))
    try:
        yield Mount(root, server, process)
    finally:
        _end(process, root)


def _start(server: Path, root: Path, faults: Faults) -> subprocess.Popen[bytes]:
    if not os.access(DEVICE, os.R_OK | os.W_OK):
        raise NoFuse(f"{DEVICE} cannot be opened here: no file system of our own can be mounted")
    if os.geteuid() != 0 and not shutil.which("fusermount3"):
        raise NoFuse("only root mounts without fusermount3: install Debian's package fuse3")
    library_path = library.find()
    sweep()
    for folder in (server, root):
        folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.fuse.filesystem", server, root, faults.dumps()],
            cwd=ROOT,
            env={**os.environ, library.VARIABLE: library_path},
            stderr=said,
        )
        until(lambda: root.is_mount() or process.poll() is not None)
        if root.is_mount():
            return process
        process.kill()
        process.wait()
        said.seek(0)
        why = said.read().decode(errors="replace").strip().rpartition("\n")[2]
    raise NoFuse(f"nothing can be mounted with {library_path}: {why}")


def until(come: Callable[[], bool]) -> None:
    """Wait until it has come; give up after a while."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not come() and time.monotonic() < deadline:
        time.sleep(0.005)


def _end(process: subprocess.Popen[bytes], root: Path) -> None:
    process.terminate()
    try:
        process.wait(PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if root in ours():  # it was killed
        unmount(root)
    root.rmdir()


def sweep() -> None:
    """Take away the mounts whose process was killed: they cannot be read any more."""
    for point in ours():
        try:
            point.stat()
        except OSError as error:
            if error.errno == errno.ENOTCONN:
                unmount(point)


def unmount(root: Path) -> None:
    """Take a mount away, however busy or dead it is."""
    if ctypes.CDLL(None).umount2(os.fsencode(root), _MNT_DETACH) != 0 and shutil.which("fusermount3"):
        subprocess.run(["fusermount3", "-uz", root], check=True)


def ours() -> list[Path]:
    """Where file systems of this kind are mounted now, by any process."""
    lines = Path("/proc/self/mounts").read_text(errors="surrogateescape").splitlines()
    points = [line.split(" ")[1] for line in lines if line.split(" ")[2] == "fuse.nfs-at-its-worst"]
    return [Path(re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), point)) for point in points]
