"""A process that cannot end what it starts does not begin."""

from __future__ import annotations

import subprocess
import sys

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
