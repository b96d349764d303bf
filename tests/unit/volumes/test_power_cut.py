"""The power goes at any moment: no version that was acknowledged is lost, torn or changed.

A file system of our own on a loop device is shut down as xfstests does it (EXT4_IOC_SHUTDOWN, journal
not flushed): from then on nothing reaches the disk. Mounted again, it holds what a power cut leaves.
"""

import fcntl
import os
import random
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from muster.core.errors import MusterError
from muster.volumes import fsck
from muster.volumes.folder import FolderStore

pytestmark = pytest.mark.soak

SCRIPT = Path(__file__).with_name("power_cut.py")
SHUTDOWN, NO_LOG_FLUSH = 0x8004587D, 2  # ext4.h
ROUNDS = 10


class Disk:
    """An ext4 of its own; its power can be cut."""

    def __init__(self, folder):
        self.image, self.mount = folder / "disk.img", folder / "disk"
        self.mount.mkdir()
        with self.image.open("wb") as image:
            image.truncate(512 << 20)
        tell("mkfs.ext4", "-q", "-F", self.image)
        self.power_on()

    def power_on(self):
        """Mount a copy of the disk: a process with the dead one in its mount namespace keeps that."""
        copy = self.image.with_name(f"{self.image.name}.copy")
        tell("cp", "--sparse=always", self.image, copy)
        copy.rename(self.image)
        tell("mount", "-o", "loop", self.image, self.mount)

    def cut(self):
        fd = os.open(self.mount, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        finally:
            os.close(fd)

    def off(self):
        if os.path.ismount(self.mount):
            tell("umount", self.mount)


def tell(*words):
    subprocess.run(words, check=True, capture_output=True)


@pytest.fixture
def disk(tmp_path):
    if os.geteuid() != 0 or not shutil.which("mkfs.ext4"):
        pytest.skip("a file system of our own needs root and mkfs.ext4")
    try:
        disk = Disk(tmp_path)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no loop device can be mounted here: {error.stderr.decode(errors='replace').strip()}")
    yield disk
    disk.off()


def acknowledged_until_the_cut(disk, turn, *how):
    """Commit, cut the power at a random moment, and switch it on again; return what was acknowledged."""
    store = disk.mount / "store"
    FolderStore(store)
    os.sync()
    words = [sys.executable, SCRIPT, store, str(turn), *how]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        said = [process.stdout.readline()]  # it is up, and has committed once
        time.sleep(random.Random(turn).uniform(0.0, 1.0))  # a moment, not a wait for something
        disk.cut()
        said += process.stdout.readlines()
    assert process.returncode != 0
    disk.off()
    disk.power_on()
    return [line.split(" ", 2) for line in said if line.endswith("\n")]


def survives(store, address, digest, text):
    try:
        (version,) = store.resolve(address)
        return version.digest == digest and (store.path(address) / "many" / "7").read_text() == text.strip(
            "\n"
        )
    except (MusterError, OSError):
        return False


def test_no_acknowledged_version_is_lost_however_often_the_power_goes(disk):
    acknowledged = []
    for turn in range(ROUNDS):
        acknowledged += acknowledged_until_the_cut(disk, turn)
        store = FolderStore(disk.mount / "store")
        assert [line[0] for line in acknowledged if not survives(store, *line)] == []
        report = fsck.check(store, deep=True)
        assert report.clean, report.problems
    assert len(acknowledged) >= 2 * ROUNDS


def test_the_cut_is_a_real_one(disk):
    """What is not brought to disk is lost: else the other test would prove nothing."""
    acknowledged = acknowledged_until_the_cut(disk, 0, "careless")
    store = disk.mount / "store"
    lost = [line for line in acknowledged if not survives(FolderStore(store), *line)]
    assert lost
