"""Gives a replica its own copy of the code that travels with the job.

The snapshot in the store is shared and never changes. Scripts may write beside themselves (bytecode,
``runs/``, a checkpoint in the working folder): they write into a copy that is deleted with the job.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator


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
    return sorted(_made(source, copy, ""))


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
