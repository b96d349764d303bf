"""Gives a replica its own copy of the code that travels with the job, and makes its inputs read-only.

The snapshot in the store is shared and never changes. Scripts may write beside themselves (bytecode,
``runs/``, a checkpoint in the working folder): they write into a copy that is deleted with the job.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator

_CLONE_NEWNS = 0x0002_0000
_MS_RDONLY, _MS_REMOUNT, _MS_BIND = 1, 32, 4096
_MS_REC, _MS_SLAVE = 16384, 1 << 19


def copy_code(source: str, target: str) -> str:
    """Copy files, folders and links below `source` into the new folder `target`, writable by their owner.

    :raises OSError: a file cannot be read or written, also where the disk is full.
    """
    os.mkdir(target)
    with os.scandir(source) as entries:
        for entry in entries:
            _copy(entry, os.path.join(target, entry.name))
    return target


def folders(code: str) -> re.Pattern[str]:
    """Return what paths of the author's files begin with: this replica's copy, or that of another one of its attempt.

    An engine's worker raises in its own replica's, and on one machine that is another folder: only the replica's name differs.
    """
    attempt, name = os.path.split(code.rstrip("/"))
    replica, attempt = os.path.split(attempt)
    root = os.path.dirname(replica).rstrip("/")
    return re.compile(f"{re.escape(root)}/[^/]+/{re.escape(attempt)}/{re.escape(name)}/")


def left_behind(source: str, copy: str) -> list[str]:
    """List what was created in a copy, sorted: files, and whole new folders with a final ``/``.

    Links are left out, since their targets lie elsewhere. So is bytecode.
    """
    try:
        return sorted(_made(source, copy, ""))
    except OSError:  # a rank removed folders, or made unreadable ones
        return []


def shown_in(folder: str) -> frozenset[str]:
    """List what a folder shows: hidden names are settings and caches. Nothing of one that cannot be read."""
    try:
        return frozenset(name for name in os.listdir(folder) if not name.startswith("."))
    except OSError:
        return frozenset()


def _made(source: str, copy: str, below: str) -> Iterator[str]:
    with os.scandir(os.path.join(copy, below)) as entries:
        for entry in entries:
            if entry.is_symlink() or entry.name == "__pycache__":
                continue
            path, is_folder = below + entry.name, entry.is_dir()
            if not os.path.lexists(os.path.join(source, path)):
                yield f"{path}/" if is_folder else path
            elif is_folder:
                yield from _made(source, copy, f"{path}/")


def _copy(entry: os.DirEntry[str], target: str) -> None:
    if entry.is_symlink():
        os.symlink(os.readlink(entry.path), target)
    elif entry.is_dir():
        copy_code(entry.path, target)
    elif entry.is_file():
        mode = entry.stat().st_mode & 0o777 | 0o200
        with open(entry.path, "rb") as source, open(target, "xb") as file:
            os.fchmod(file.fileno(), mode)
            while data := source.read(1 << 20):
                file.write(data)


def version_folder(path: str) -> str:
    """Return the folder of the version that an input lies in, or the input where it lies in none."""
    folder = path
    while (above := os.path.dirname(folder)) != folder:
        if os.path.basename(folder) == "data" and os.path.isfile(os.path.join(above, "RECORD.json")):
            return above
        folder = above
    return path


def protect(folders: Iterable[str]) -> bool:
    """Make inputs read-only for this process, which has one thread, and for all its children, for root too.

    The modes of a version's files keep all users but root from writing. A mistake of root would change a version
    for all its readers. From mount_namespaces(7) and mount(2): a process that may (CAP_SYS_ADMIN) gets its own
    view of the mounts, seen by it and its children alone, which ends with them.

    An input lies in its version's folder, ``<n>/data``. The whole version folder is protected: its manifest and
    RECORD.json, which describe the data and its origin, are not the job's to change either.

    :returns: whether the kernel allowed it. Where it does not, the process usually is not root, and the
        files' modes protect them.
    """
    wanted = sorted({version_folder(folder) for folder in folders})
    if not wanted or os.geteuid() != 0:
        return False
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) != 0:
        return False

    def mount(source: bytes | None, target: bytes, flags: int) -> bool:
        return bool(libc.mount(source, target, None, ctypes.c_ulong(flags), None) == 0)

    if not mount(None, b"/", _MS_REC | _MS_SLAVE):  # else all processes would see the mounts below
        return False
    names = map(os.fsencode, wanted)
    done = [mount(n, n, _MS_BIND) and mount(None, n, _MS_REMOUNT | _MS_BIND | _MS_RDONLY) for n in names]
    return all(done)
