"""Lock files (flock(2)): made on first use, never deleted, given back by the kernel when their holder dies.

All locks of muster are taken here. Those of a store (``muster.volumes.durability``) never make a folder, and hold between
threads too.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_held: set[int] = set()


def leave_to_parent() -> None:
    """Close in a fork the lock files that its parent held, so that they are free as soon as the parent dies."""
    for handle in _held:
        os.close(handle)
    _held.clear()


def take(handle: int, *, shared: bool = False, wait: bool = True) -> bool:
    """Lock an open file for all who have it open by this handle, until the last of them closes it.

    :param wait: wait for another holder; else return False where there is one.
    """
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(handle, kind if wait else kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock file, waiting for it."""
    with _opened(path) as handle:
        take(handle)
        yield


@contextmanager
def locked_if_free(path: Path) -> Iterator[bool]:
    """Hold a lock file unless another holds it; yield whether it is held now."""
    with _opened(path) as handle:
        yield take(handle, wait=False)


def is_locked(path: Path) -> bool:
    """Whether a lock file is held; asked with a shared lock, which disturbs no other who asks."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not take(handle, shared=True, wait=False)
    finally:
        os.close(handle)


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    try:
        handle = _open(path)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = _open(path)
    _held.add(handle)
    try:
        yield handle
    finally:
        _held.discard(handle)
        os.close(handle)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
