"""Ends the command's process at once, without freeing loaded modules one by one."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable
from typing import NoReturn

told: list[Callable[[int], None]] = []  # called with the status at the very end


def leave(status: int) -> NoReturn:
    """End this process as Python would, but without freeing its objects.

    With Airflow loaded that takes half a second of CPU, on a busy machine several seconds, after all has been
    printed. What is registered with :mod:`atexit` runs, and what is written to stdout and stderr gets there;
    a thread that has to be waited for, and a pipe that is not read, get Python's own way out.
    """
    waited = any(t is not threading.current_thread() and not t.daemon for t in threading.enumerate())
    if "airflow" not in sys.modules or waited:
        sys.exit(status)
    atexit._run_exitfuncs()  # the interpreter's own way to run them; there is no public one
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        sys.exit(status)
    for tell in told:
        tell(status)
    os._exit(status)
