"""Ties processes together: a child dies with its parent, and a parent is given the orphans below it (prctl(2))."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(
    None, use_errno=True
)  # loaded now: in a forked child another thread's lock could be held for ever


def die_with(parent: int) -> None:
    """Have the kernel kill this process when `parent` dies; exit at once where it is dead already.

    A program that is executed keeps it, a fork does not. The kernel watches the thread that forked, so
    `parent` must fork from a thread that lives as long as the process.

    :raises OSError: the kernel refuses.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the kernel was told
        os._exit(128 + signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, so that none is lost from sight.

    :raises OSError: the kernel refuses.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


@contextmanager
def giving_up_orphans() -> Iterator[None]:
    """Adopt no orphans inside the block: a daemon that is started there belongs to no process of ours.

    :raises OSError: the kernel refuses.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 0)
    try:
        yield
    finally:
        adopt_orphans()


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}): {os.strerror(code)}")
