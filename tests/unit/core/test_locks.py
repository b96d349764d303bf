"""Lock files, and what a fork does with those of its parent."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from muster.core.locks import is_locked, leave_to_parent, locked, locked_if_free


def test_a_lock_is_held_once_and_given_back(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "lock"
    with locked(path):
        with locked_if_free(path) as mine:
            assert not mine
        assert is_locked(path)
    assert not is_locked(path)


def test_a_fork_that_leaves_them_to_its_parent_does_not_hold_them(tmp_path: Path) -> None:
    path, (ready, begun) = tmp_path / "lock", os.pipe()
    with locked(path):
        pid = os.fork()
        if pid == 0:
            leave_to_parent()
            os.write(begun, b".")
            signal.pause()
        os.read(ready, 1)
    try:
        assert not is_locked(path)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(ready)
        os.close(begun)
