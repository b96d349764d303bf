"""Holds a folder open below another one, reached through no link, however deep it lies.

The job that wrote a tree may still be writing it, and may replace one of its folders by a link between two
system calls. A path is opened in one call where the kernel can (openat2(2)), so a walk of a deep tree costs
few calls per folder, and otherwise name by name (openat(2), O_NOFOLLOW).
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

_OPENAT2, _RESOLVE_NO_SYMLINKS = 437, 0x04  # openat2(2); the number is the same on every architecture
_LONGEST_STEP = 4_000  # bytes of a path: PATH_MAX is 4096
_AT_FDCWD, _EXCHANGE = -100, 2  # renameat2(2)
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def held_entries(folder: Path | str, inner: str = "") -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield all that is below `inner` in a folder that others may write, folders too, with paths below `folder`; no link is followed.

    The path of an entry is valid until the next one is requested.
    """
    waiting = [inner]
    while waiting:
        inner = waiting.pop()
        with held(folder, inner) as here:
            for entry in list(os.scandir(here)):
                path = f"{inner}/{entry.name}" if inner else entry.name
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(path)
                yield path, entry


@contextmanager
def closing_handle(handle: int) -> Iterator[int]:
    """Lend the handle of an open file or folder, and close it after the block."""
    try:
        yield handle
    finally:
        os.close(handle)


def write_all(handle: int, data: bytes | memoryview) -> None:
    """Write all of `data`, which one call of write(2) may not."""
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


@contextmanager
def held(folder: Path | str, inner: str = "") -> Iterator[str]:
    """Yield a path for `inner` below `folder` that is valid in the block, even if the folder is replaced.

    Errors that are raised in the block name `folder` and `inner` instead of that path.

    :raises NotADirectoryError: it is a link or a file, or the way from `folder` leads through one.
    """
    fd = os.open(folder, _FOLDER)
    try:
        for step in _steps(inner):
            fd, before = _open_below(fd, step), fd
            os.close(before)
        name = f"/proc/self/fd/{fd}"
        try:
            yield name
        except OSError as error:
            if isinstance(error.filename, str) and error.filename.startswith(name):
                error.filename = str(Path(folder, inner)) + error.filename.removeprefix(name)
            raise
    finally:
        os.close(fd)


def _steps(inner: str) -> Iterator[bytes]:
    """Cut a path into parts that one system call can take, usually one."""
    rest = os.fsencode(inner)
    while len(rest) > _LONGEST_STEP:
        cut = rest.rfind(b"/", 0, _LONGEST_STEP)
        yield rest[:cut]
        rest = rest[cut + 1 :]
    if rest:
        yield rest


def _open_below(fd: int, path: bytes) -> int:
    """Open a folder below an open one through no link, in one call (openat2(2)): a deep tree is many long paths."""
    if b"/" in path and (opened := openat2(fd, path)) is not None:
        return opened
    fd = os.dup(fd)
    try:
        for name in path.split(b"/"):
            opened = os.open(name, _FOLDER, dir_fd=fd)
            os.close(fd)
            fd = opened
    except OSError:
        os.close(fd)
        raise
    return fd


def openat2(fd: int, path: bytes) -> int | None:
    """Open a folder below an open one; None where the kernel, or a sandbox, lacks the call."""
    how = struct.pack("QQQ", _FOLDER, 0, _RESOLVE_NO_SYMLINKS)
    opened = int(_libc().syscall(_OPENAT2, fd, path, how, ctypes.c_size_t(len(how))))
    if opened >= 0:
        return opened
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EPERM):
        return None
    raise OSError(errno.ENOTDIR if code == errno.ELOOP else code, os.strerror(code), os.fsdecode(path))


def swap(one: str, other: str) -> bool:
    """Exchange two names in one step (renameat2(2)); False where the kernel or the file system cannot."""
    call = getattr(_libc(), "renameat2", None)
    if call is None:
        return False
    return bool(call(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _EXCHANGE) == 0)


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
