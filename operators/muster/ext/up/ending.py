"""How a process of Airflow's ends: as Python ends, without freeing its objects one by one."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn


def do_and_end(work: Callable[[], None]) -> NoReturn:
    """Do the work of a whole process and end the process, whatever comes of it.

    With Airflow loaded, freeing takes a second of CPU after the last output, for longer than `muster up` waits for it.
    Threads that have to be are waited for, functions registered with :mod:`atexit` run, and what was printed is written.
    """
    code = 0
    try:
        work()
    except SystemExit as end:
        code = _code(end)
    except BaseException:
        traceback.print_exc()
        code = 1
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # there is no public function that does either
        atexit._run_exitfuncs()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):  # the disk is full, or it was closed
                stream.flush()
        os._exit(code)


def _code(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return (end.code or 0) & 0xFF
    print(end.code, file=sys.stderr)  # noqa: T201 as Python does
    return 1
