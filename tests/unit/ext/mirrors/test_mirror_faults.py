"""Mirrors that are killed at any moment show nothing half, and go on where they ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from tests.namespaces import on_a_small_disk

FAULTS = Path(__file__).parent / "mirror_faults.py"


def killed(kind: str, steps: str) -> dict[str, int]:
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # no power is cut
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        done = subprocess.run(
            [sys.executable, FAULTS, folder, kind, steps],
            capture_output=True,
            text=True,
            check=False,
            timeout=3600,
        )
        subprocess.run(["chmod", "-R", "u+w", folder], check=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["store", "open"])
def test_a_mirror_that_is_killed_goes_on(kind: str) -> None:
    assert killed(kind, "4")["kills"] > 0


@pytest.mark.soak
def test_a_mirror_whose_disk_is_full(tmp_path: Path) -> None:
    script = FAULTS.with_name("full_mirror.py")
    command = on_a_small_disk(tmp_path, 8, sys.executable, script, tmp_path)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["store", "open"])
def test_a_mirror_may_be_killed_at_every_step(kind: str) -> None:
    outcome = killed(kind, "all")
    assert outcome["kills"] >= outcome["steps"] - 3  # threads make a step more or less


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["store", "open"])
def test_a_mirror_may_be_killed_500_times(kind: str) -> None:
    assert killed(kind, "500")["kills"] > 250
