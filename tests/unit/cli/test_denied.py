"""What another user owns is named with its owner: an error of the machine says whose a path is."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("name", ["", "store", "store/gone"])
def test_a_path_of_another_user_is_told_with_both_users(tmp_path: Path, name: str) -> None:
    source = """
import errno, os, sys
from muster.cli import app
os.geteuid = lambda: os.getuid() + 12345
app.end_by(PermissionError(errno.EACCES, "Permission denied", sys.argv[1]))
"""
    path = tmp_path / name
    ended = subprocess.run([sys.executable, "-c", source, path], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    mine, other = pwd.getpwuid(os.getuid()).pw_name, f"user {os.getuid() + 12345}"
    told = f"Permission denied: {path}; {tmp_path} belongs to {mine}, and you are {other}"
    assert " ".join(ended.stderr.split()) == f"muster: {told}"


def test_a_path_of_ones_own_is_told_without(tmp_path: Path) -> None:
    source = "import sys; from muster.cli import app; app.end_by(PermissionError(13, 'Permission denied', sys.argv[1]))"
    ended = subprocess.run(
        [sys.executable, "-c", source, tmp_path], capture_output=True, text=True, check=False
    )
    assert " ".join(ended.stderr.split()) == f"muster: Permission denied: {tmp_path}"
