"""Folders as the store moves them: walked, joined, copied and taken away, never through a link.

Paths are text here: for a small file, building a Path costs more than hashing it.
"""

# ruff: noqa: PTH101, PTH106, PTH108, PTH115 - see above

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import typing
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

from muster.volumes.durability import rename, symlink, temporary

_AT_FDCWD, _EXCHANGE = -100, 2  # renameat2(2)
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


def set_modes(folders: Iterable[str], mode: int) -> None:
    """Give every folder the permissions `mode`."""
    for folder in folders:
        os.chmod(folder, mode)


def unlock(folder: Path) -> list[str]:
    """Make `folder` and every folder below it writable; return them, parents first, none if it is no folder.

    Each is changed before it is listed: an NFS client, which shows late what others made there, learns
    of it with the reply to a change of its own.
    """
    found: list[str] = []
    waiting = [str(folder)] if folder.is_dir() and not folder.is_symlink() else []
    while waiting:
        inner = waiting.pop()
        os.chmod(inner, 0o755)  # noqa: S103 - a folder of the store, which others may read
        found.append(inner)
        with os.scandir(inner) as entries:
            waiting += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    return found


def graft(source: Path, target: Path) -> None:
    """Move all of `source` into `target`, whole folders where they are new there; a file replaces one.

    It can be called again after a crash: what was moved is no longer in `source`.
    """
    if not source.is_dir():
        return
    if not target.is_dir():
        try:
            rename(source, target)
            return
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
        target.mkdir(exist_ok=True)
    for entry in list(os.scandir(source)):
        if entry.is_dir(follow_symlinks=False):
            graft(source / entry.name, target / entry.name)
        else:
            move_file(entry.path, f"{target}/{entry.name}")
    source.rmdir()


def move_file(source: str, target: str) -> None:
    """Rename a file, or copy it where the file system renames nothing from one folder into another (EXDEV).

    What a crash copied in part stays beside `target`, under a :func:`~muster.volumes.durability.temporary` name.
    """
    try:
        rename(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        part = str(temporary(Path(target)))
        copy_file(source, part)
        rename(part, target)
        with suppress(FileNotFoundError):  # another machine did the same
            os.unlink(source)


def prune(folder: Path) -> None:
    """Take away the folders below `folder` that hold no file: a manifest does not know them."""
    for inner in reversed(folders_of(folder)[1:]):
        with suppress(OSError):  # it holds something
            os.rmdir(inner)


def copy_file(source: str, target: str) -> None:
    """Copy the bytes of a regular file, sharing its blocks where the file system can (never its inode)."""
    reading = os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        writing = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            if not _clone(reading, writing):
                _send(reading, writing, os.fstat(reading).st_size)
        finally:
            os.close(writing)
    finally:
        os.close(reading)


def reflinks(source: Path, target: Path) -> bool:
    """Whether the file system can share blocks between two files; `target` is made to find out."""
    with source.open("rb") as reader, target.open("xb") as writer:
        return _clone(reader.fileno(), writer.fileno())


def own_bytes(path: str, *, spare: str) -> None:
    """Give the name `path` an inode of its own, so that other names of the old one cannot change it.

    :param spare: a name on the same file system that is free, or was left by a crash.
    """
    with suppress(FileNotFoundError):
        os.unlink(spare)
    copy_file(path, spare)
    move_file(spare, path)


def link_over(theirs: str, mine: str, *, spare: str) -> None:
    """Let the name `mine` stand for the file `theirs` if they are equally long.

    :param spare: a free name on the same file system; it gets what `mine` was, to be deleted when
        there is time: ext4 needs four times as long to delete a small file as to link one.
    """
    old, new = os.lstat(theirs), os.lstat(mine)
    if old.st_size == new.st_size and old.st_ino != new.st_ino:
        os.link(theirs, spare, follow_symlinks=False)
        exchange(spare, mine)


def exchange(one: str, other: str) -> None:
    """Swap two names in one step (renameat2(2)), or replace `other` where that cannot be had."""
    swap = _renameat2()
    if swap is None or swap(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _EXCHANGE) != 0:
        rename(one, other)


@cache
def _renameat2() -> Callable[[int, bytes, int, bytes, int], int] | None:
    import ctypes

    found = getattr(ctypes.CDLL(None), "renameat2", None)
    return typing.cast("Callable[[int, bytes, int, bytes, int], int] | None", found)


def copy_tree(source: Path, target: Path) -> None:
    """Copy a folder that others may be writing: a file that vanishes meanwhile is left out.

    Symbolic links are copied as links; sockets, pipes and devices are left out.
    """
    target.mkdir(parents=True)
    for entry in list(os.scandir(source)):
        inner = str(target / entry.name)
        with suppress(FileNotFoundError):
            if entry.is_symlink():
                symlink(os.readlink(entry.path), inner)
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
    unlock(folder)
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
