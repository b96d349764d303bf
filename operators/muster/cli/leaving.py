"""Ends the command's process at once, without freeing loaded modules one by one."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from typing import NoReturn


def leave(status: int) -> NoReturn:
    """End this process as Python does, but without freeing its objects.

    With Airflow loaded, freeing takes half a second of CPU, and on a busy machine several seconds, after the last
    output. Functions registered with :mod:`atexit` run, and stdout and stderr are flushed. If a thread must be joined,
    or a pipe is not read, Python ends the process in its usual way.
    """
    waited = any(t is not threading.current_thread() and not t.daemon for t in threading.enumerate())
    if "airflow" not in sys.modules or waited:
        sys.exit(status)
    atexit._run_exitfuncs()  # there is no public function that runs them
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        sys.exit(status)
    os._exit(status)
