"""The power goes at any moment: no version that was acknowledged is lost, torn or changed."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.disk import own_disk

from muster.core.errors import MusterError
from muster.volumes.folder import FolderStore

pytestmark = pytest.mark.soak

SCRIPT = Path(__file__).with_name("power_cut.py")
ROUNDS = 10


@pytest.fixture
def disk(tmp_path):
    with own_disk(tmp_path) as disk:
        yield disk


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
    assert disk.off()
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
        report = store.check(deep=True)
        assert report.clean, report.problems
    assert len(acknowledged) >= 2 * ROUNDS


def test_the_cut_is_a_real_one(disk):
    """What is not brought to disk is lost: else the other test would prove nothing."""
    acknowledged = acknowledged_until_the_cut(disk, 0, "careless")
    store = disk.mount / "store"
    lost = [line for line in acknowledged if not survives(FolderStore(store), *line)]
    assert lost
