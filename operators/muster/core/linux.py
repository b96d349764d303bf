"""Ties processes together: one dies with its parent, or with a pipe, and a parent is given the orphans below it."""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

_PR_SET_PDEATHSIG = 1
_PR_SET_KEEPCAPS = 8
_PR_SET_CHILD_SUBREAPER = 36
_IN_MOVED_TO = 0x80
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_RAISE = 2
_CAP_DAC_OVERRIDE = 1
_CAPABILITIES_3 = 0x20080522

# Loaded now: in a forked child another thread's lock could be held for ever.
_libc = ctypes.CDLL(None, use_errno=True)


def die_with(parent: int, number: int = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when `parent` dies; exit at once where it is dead already.

    A program that is executed keeps it, a fork does not. The kernel watches the thread that forked, so
    `parent` must fork from a thread that lives as long as the process.

    :raises OSError: the kernel refuses.
    """
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # it died before the kernel was told
        os._exit(128 + signal.SIGKILL)


def die_without(leash: int) -> None:
    """Have the kernel kill this process when no process holds the other end of a pipe any more; at once where none does.

    A program that is executed keeps it if it keeps the file open, a fork does not. Who holds the other end need not be a parent,
    and may change (fcntl(2), ``O_ASYNC``).

    :param leash: the pipe's end for reading, to which nothing is ever written; becomes an open file of this process alone.
    """
    own = os.open(f"/proc/self/fd/{leash}", os.O_RDONLY | os.O_NONBLOCK)  # its owner is one process
    os.dup2(own, leash)
    os.close(own)
    fcntl.fcntl(leash, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(leash, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(leash, fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC)
    if select.select([leash], [], [], 0)[0]:  # let go before the kernel was told
        os._exit(128 + signal.SIGKILL)


def watched(folder: str) -> int:
    """Return an open file that is readable once a file has been renamed into a folder, as each is that is written whole.

    It is inotify(7)'s, and does not block. :raises OSError: the kernel refuses, where a user has too many of them.
    """
    handle: int = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if handle < 0 or _libc.inotify_add_watch(handle, os.fsencode(folder), _IN_MOVED_TO) < 0:
        code = ctypes.get_errno()
        if handle >= 0:
            os.close(handle)
        raise OSError(code, f"inotify: {os.strerror(code)}", folder)
    return handle


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


def become_user(user: int, group: int) -> None:
    """Turn this process of root's into one of another user, which still enters root's folders.

    For a program that refuses to be root and works in a folder of root's: of root's rights the programs executed
    from here on have CAP_DAC_OVERRIDE alone.

    :raises OSError: the kernel refuses, as in a container without these capabilities.
    """
    _prctl(_PR_SET_KEEPCAPS, 1)
    os.setgroups([])
    os.setresgid(group, group, group)
    os.setresuid(user, user, user)
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_3, 0)  # of this process
    kept = 1 << _CAP_DAC_OVERRIDE
    sets = (ctypes.c_uint32 * 6)(kept, kept, kept)  # effective, permitted, inheritable; then the upper halves
    if _libc.capset(header, sets) != 0:
        _refuse("capset")
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, _CAP_DAC_OVERRIDE)


def signal_name(number: int) -> str:
    """Return what a signal is called; those between SIGRTMIN and SIGRTMAX have numbers only."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _prctl(option: int, value: int, third: int = 0) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(third), 0, 0) != 0:
        _refuse(f"prctl({option})")


def _refuse(what: str) -> NoReturn:
    code = ctypes.get_errno()
    raise OSError(code, f"{what}: {os.strerror(code)}")
