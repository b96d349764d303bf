"""Folders as the store moves them: walked, joined, copied and taken away, never through a link."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from muster.core.errors import StoreError

_FICLONE = 0x40049409  # ioctl_ficlone(2)
_NO_CLONE = frozenset({errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS})


def files_of(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Every entry below `folder` that is no folder, links and devices included; no link is followed."""
    waiting = [str(folder)]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                else:
                    yield entry


def folders_of(folder: Path) -> list[str]:
    """`folder` and every folder below it, parents first."""
    return [inner for inner, _, _ in os.walk(folder)]


def graft(source: Path, target: Path) -> None:
    """Move all of `source` into `target`, whole folders where they are new there.

    It can be called again after a crash: what was moved is no longer in `source`.
    """
    if not source.is_dir():
        return
    if not target.is_dir():
        source.rename(target)
        return
    for entry in list(os.scandir(source)):
        inner = target / entry.name
        if entry.is_dir(follow_symlinks=False):
            graft(source / entry.name, inner)
        elif os.path.lexists(inner):
            raise StoreError(f"two replicas wrote {inner.name}: {entry.path} is in the way of {inner}")
        else:
            os.rename(entry.path, inner)
    source.rmdir()


def prune(folder: Path) -> None:
    """Take away the folders below `folder` that hold no file: a manifest does not know them."""
    for inner in reversed(folders_of(folder)[1:]):
        with suppress(OSError):  # it holds something
            os.rmdir(inner)


def copy_file(source: str, target: str) -> None:
    """Copy the bytes of a regular file, sharing its blocks where the file system can (never its inode)."""
    fd = os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        with os.fdopen(os.dup(fd), "rb") as reader, open(target, "xb") as writer:  # noqa: PTH123 - text paths
            if not _clone(reader.fileno(), writer.fileno()):
                _send(reader.fileno(), writer.fileno(), os.fstat(fd).st_size)
    finally:
        os.close(fd)


def copy_tree(source: Path, target: Path) -> None:
    """Copy a folder that others may be writing: a file that vanishes meanwhile is left out.

    Symbolic links are copied as links; sockets, pipes and devices are left out.
    """
    target.mkdir(parents=True)
    for entry in list(os.scandir(source)):
        inner = str(target / entry.name)
        with suppress(FileNotFoundError):
            if entry.is_symlink():
                os.symlink(os.readlink(entry.path), inner)
            elif entry.is_dir():
                copy_tree(source / entry.name, target / entry.name)
            elif entry.is_file():
                copy_file(entry.path, inner)


def remove(folder: Path) -> None:
    """Take a tree away, read-only folders included; what is gone already is no error."""
    if not os.path.lexists(folder):
        return
    if not folder.is_dir() or folder.is_symlink():
        folder.unlink()
        return
    for inner in folders_of(folder):
        if os.stat(inner).st_mode & 0o300 != 0o300:
            os.chmod(inner, 0o755)
    shutil.rmtree(folder)


def _clone(source: int, target: int) -> bool:
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError as error:
        if error.errno in _NO_CLONE:
            return False
        raise
    return True


def _send(source: int, target: int, size: int) -> None:
    offset = 0
    while offset < size:
        sent = os.sendfile(target, source, offset, size - offset)
        if not sent:
            break
        offset += sent


def reflinks(source: Path, target: Path) -> bool:
    """Whether the file system can share blocks between two files; `target` is made to find out."""
    with source.open("rb") as reader, target.open("xb") as writer:
        return _clone(reader.fileno(), writer.fileno())
