"""Walks, joins, copies and deletes folders of the store, never through a link.

The job that wrote a folder may still be writing it, and may replace one of its folders by a link to the
store's own files between two system calls. So all work in a folder uses the path that
:func:`~muster.core.holding.held` gives for the opened folder.

Paths are str here: for a small file, building a Path costs more than hashing it.
"""

# ruff: noqa: PTH101, PTH102, PTH106, PTH108, PTH115 - see above

from __future__ import annotations

import errno
import fcntl
import os
import stat
import typing
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from muster.core.holding import closing_handle, held, held_entries, swap
from muster.core.kept import relative
from muster.volumes.durability import rename, symlink, sync_folder, temporary

_COPIED_BYTES = 1 << 20

_FICLONE = 0x40049409  # ioctl_ficlone(2)
_SWAPPED = (FileNotFoundError, NotADirectoryError)  # it was deleted, or replaced by something else
_NOT_REGULAR = frozenset({errno.ELOOP, errno.ENXIO})  # a link; a socket
_NO_CLONE = frozenset({errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS})


def files_of(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Yield every entry below `folder` that is not a folder, also links and devices; no link is followed.

    For folders that no other process writes.
    """
    waiting = [str(folder)]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                else:
                    yield entry


def held_files_of(folder: Path) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Do as :func:`files_of`, for a folder that others may write: yield entries with paths below `folder`.

    The path of an entry is valid until the next one is requested.
    """
    return ((path, entry) for path, entry in held_entries(folder) if not entry.is_dir(follow_symlinks=False))


def holds_files(folder: Path) -> bool:
    """Whether any entry below `folder`, which others may write, is not a folder."""
    with suppress(*_SWAPPED):
        return any(True for _ in held_files_of(folder))
    return False


def folders_of(folder: Path) -> list[str]:
    """Return the relative paths of `folder` (empty) and every folder below it, parents first."""
    return list(_folders(folder))


def set_modes(folder: Path, inner: Iterable[str], mode: int) -> None:
    """Give folders below `folder` the permissions `mode`."""
    for each in inner:
        with held(folder, each) as here:
            os.chmod(here, mode)


def unlock(folder: Path) -> list[str]:
    """Make `folder` and every folder below it writable; return them as :func:`folders_of`.

    Each is changed before it is listed: an NFS client, which lists changes of other machines late, learns
    of them with the reply to a change of its own.
    """
    there = folder.is_dir() and not folder.is_symlink()
    return list(_folders(folder, mode=0o755)) if there else []


def _folders(folder: Path, *, mode: int | None = None) -> Iterator[str]:
    waiting = [""]
    while waiting:
        inner = waiting.pop()
        with suppress(*_SWAPPED), held(folder, inner) as here:
            if mode is not None:
                os.chmod(here, mode)
            with os.scandir(here) as entries:
                waiting += [
                    _below(inner, entry.name) for entry in entries if entry.is_dir(follow_symlinks=False)
                ]
            yield inner


def _below(inner: str, name: str) -> str:
    return f"{inner}/{name}" if inner else name


def graft(source: Path, target: Path) -> None:
    """Move all of `source` into `target`, whole folders where they are new there; files replace files.

    It can be called again after a crash: moved files are no longer in `source`.
    """
    if not source.is_dir():
        return
    with held(source.parent) as above, held(target.parent) as beside:
        if _moved_whole(f"{above}/{source.name}", f"{beside}/{target.name}"):
            return
    emptied, waiting = [], [""]
    while waiting:
        inner = waiting.pop()
        emptied.append(inner)
        with held(source, inner) as here, held(target, inner) as there:
            for entry in list(os.scandir(here)):
                if not entry.is_dir(follow_symlinks=False):
                    _move_file(entry.path, f"{there}/{entry.name}")
                elif not _moved_whole(entry.path, f"{there}/{entry.name}"):
                    waiting.append(_below(inner, entry.name))
    for inner in reversed(emptied):
        _remove_empty(source, inner)


def _moved_whole(source: str, target: str) -> bool:
    """Move a folder if there is none at `target`, else make sure of one there; return whether it moved."""
    if not os.path.lexists(target):
        try:
            rename(source, target)
            return True
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
        os.mkdir(target)
    return False


def _remove_empty(folder: Path, inner: str) -> None:
    above, _, name = inner.rpartition("/")
    top, above = (folder, above) if inner else (folder.parent, "")
    with held(top, above) as here:
        os.rmdir(f"{here}/{name or folder.name}")


def _move_file(source: str, target: str) -> None:
    """Rename a file, or copy it where the file system cannot rename between folders (EXDEV).

    A crash leaves a partial copy beside `target`, under a :func:`~muster.volumes.durability.temporary` name.
    """
    try:
        rename(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        part = str(temporary(Path(target)))
        copy_file(source, part)
        rename(part, target)
        with suppress(FileNotFoundError):  # another machine did the same meanwhile
            os.unlink(source)


def prune(folder: Path) -> None:
    """Delete folders below `folder` without files: a manifest does not list them."""
    for inner in reversed(folders_of(folder)[1:]):
        with suppress(OSError):  # it is not empty
            _remove_empty(folder, inner)


def copy_file(source: str, target: str) -> None:
    """Copy a regular file, executable or not, sharing its blocks where the file system can (never its inode).

    :raises FileNotFoundError: there is none, or it is not a regular file.
    """
    with closing_handle(open_regular(source)) as reading:
        mode = 0o755 if runs(os.fstat(reading)) else 0o644
        made = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with closing_handle(made) as writing:
            if not _clone(reading, writing):
                _send(reading, writing, os.fstat(reading).st_size)


def runs(status: os.stat_result) -> bool:
    """Whether its owner may run a file."""
    return bool(status.st_mode & stat.S_IXUSR)


def lengthen(target: Path, file: typing.BinaryIO) -> None:
    """Append to `target` the bytes of `file` that it lacks; a file that is not longer changes nothing.

    It is never replaced, so a process that has it open reads on.

    :param file: at its beginning.
    """
    make_folders(target.parent)
    with target.open("ab") as copy:
        rest = copy.tell()
        while rest and (skipped := len(file.read(min(rest, _COPIED_BYTES)))):
            rest -= skipped
        while chunk := file.read(_COPIED_BYTES):
            copy.write(chunk)


def open_regular(path: str) -> int:
    """Open a file for reading.

    :raises FileNotFoundError: there is none, or it is a link or other special file.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno not in _NOT_REGULAR:
            raise
    else:
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return fd
        os.close(fd)
    raise FileNotFoundError(errno.ENOENT, "no regular file is there", path)


def own_bytes(path: str, *, spare: str) -> None:
    """Give the name `path` an inode of its own, so that it cannot be changed under other names.

    :param spare: an unused name on the same file system, or one that a crash left.
    """
    with suppress(FileNotFoundError):
        os.unlink(spare)
    copy_file(path, spare)
    _move_file(spare, path)


def exchange(one: str, other: str) -> None:
    """Swap two names in one step (renameat2(2)), or replace `other` where the kernel cannot."""
    if not swap(one, other):
        rename(one, other)


def copy_tree(source: Path, target: Path) -> None:
    """Copy a folder that others may be writing: a file that vanishes meanwhile is left out.

    Symbolic links are copied as links, relative ones where they lead into `source`; sockets, pipes and devices are left out.
    """
    target.mkdir(parents=True)
    waiting = [""]
    while waiting:
        inner = waiting.pop()
        with suppress(*_SWAPPED), held(source, inner) as here:
            there = str(target / inner)
            waiting += [
                _below(inner, entry.name)
                for entry in list(os.scandir(here))
                if _copied(entry, f"{there}/{entry.name}", linked=partial(relative, str(source), inner))
            ]


def _copied(entry: os.DirEntry[str], target: str, *, linked: Callable[[str], str]) -> bool:
    """Copy one entry, of a folder only the folder itself; return whether it is a folder."""
    with suppress(FileNotFoundError):
        if entry.is_symlink():
            symlink(linked(os.readlink(entry.path)), target)
        elif entry.is_dir(follow_symlinks=False):
            os.mkdir(target)
            return True
        elif entry.is_file(follow_symlinks=False):
            copy_file(entry.path, target)
    return False


def make_whole(folder: Path, fill: Callable[[Path], None]) -> bool:
    """Make a folder with what `fill` writes into it, whole or not at all; False where another process has made it meanwhile."""
    new = temporary(folder)
    new.mkdir()
    try:
        fill(new)
        rename(new, folder)
    except OSError:
        if not folder.is_dir():
            raise
        return False
    finally:
        remove(new)
    sync_folder(folder.parent)
    return True


def remove(folder: Path) -> None:
    """Delete a tree, with read-only folders, however deep; missing entries are no error."""
    if not os.path.lexists(folder):
        return
    if not folder.is_dir() or folder.is_symlink():
        folder.unlink(missing_ok=True)
        return
    for inner in reversed(unlock(folder)):
        with suppress(*_SWAPPED):
            with held(folder, inner) as here:
                for entry in list(os.scandir(here)):
                    with suppress(FileNotFoundError):
                        os.unlink(entry.path)
            _remove_empty(folder, inner)


def make_folders(folder: Path) -> None:
    """Create a folder and its parents, however many there are (``Path.mkdir`` recurses for each)."""
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for each in reversed(missing):
        each.mkdir(exist_ok=True)


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
