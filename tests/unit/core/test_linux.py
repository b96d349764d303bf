"""A process that cannot end what it starts does not begin."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from muster.core.linux import die_without, watched

REFUSING = """
import ctypes

class Kernel:
    def prctl(self, *_):
        ctypes.set_errno(1)
        return -1

ctypes.CDLL = lambda *_, **__: Kernel()
from muster.core.linux import adopt_orphans
adopt_orphans()
"""


def test_a_kernel_that_refuses_is_an_error_and_no_line_in_the_log() -> None:
    done = subprocess.run([sys.executable, "-c", REFUSING], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.endswith("PermissionError: [Errno 1] prctl(36): Operation not permitted\n")


@pytest.mark.parametrize("stopped", [False, True])
def test_a_process_on_a_leash_dies_when_the_last_holder_lets_go(stopped: bool) -> None:
    leash, hand = os.pipe()
    other = os.dup(hand)
    with subprocess.Popen(["sleep", "600"], pass_fds=[leash], preexec_fn=lambda: die_without(leash)) as held:
        if stopped:
            held.send_signal(signal.SIGSTOP)
        os.close(hand)
        assert held.poll() is None
        os.close(other)
        assert held.wait() == -signal.SIGKILL
        with subprocess.Popen(
            ["sleep", "600"], pass_fds=[leash], preexec_fn=lambda: die_without(leash)
        ) as late:
            assert late.wait() == 128 + signal.SIGKILL
    os.close(leash)


def test_a_folder_that_is_watched_tells_of_files_that_are_written_whole(tmp_path: Path) -> None:
    handle = watched(str(tmp_path))
    (tmp_path / "log").write_text("a line\n")
    with pytest.raises(BlockingIOError):
        os.read(handle, 1024)
    (tmp_path / "log").rename(tmp_path / "state.json")
    assert os.read(handle, 1024)
    os.close(handle)
    with pytest.raises(FileNotFoundError):
        watched(str(tmp_path / "none"))
