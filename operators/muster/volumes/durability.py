"""What must survive a power cut or a kill: whole files, synced names, locks that die with their holder."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from muster.core.errors import StoreError

TEMPORARY = ".new-"


def temporary(beside: Path) -> Path:
    """Name a file or folder beside `beside` that no reader looks at and nobody else uses."""
    return beside.parent / f"{TEMPORARY}{os.urandom(8).hex()}"


def write_whole(path: Path, data: str | bytes, *, durable: bool = True) -> None:
    """Replace `path` by `data`: a reader sees the old file or the new one, never a part.

    :param durable: return only when it survives a power cut.
    """
    new = temporary(path)
    try:
        _write(new, data.encode() if isinstance(data, str) else data, durable=durable)
        new.replace(path)
    except BaseException:
        with suppress(OSError):
            new.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


def write_over(path: Path, data: str) -> None:
    """Write a file that nobody reads before a sync and a rename have followed."""
    path.unlink(missing_ok=True)
    _write(path, data.encode(), durable=False)


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_all(folder: Path) -> None:
    """Make everything written so far on the file system of `folder` durable, in one call (syncfs(2))."""
    import ctypes

    syncfs = ctypes.CDLL(None, use_errno=True).syncfs
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if syncfs(fd) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(folder))
    finally:
        os.close(fd)


def sync_tree(folder: Path) -> None:
    """Make a tree durable file by file, for file systems whose syncfs is no barrier (NFS)."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(16) as pool:
        for inner, _, names in os.walk(folder, topdown=False):
            list(pool.map(_sync_file, [f"{inner}/{name}" for name in names]))
            sync_folder(Path(inner))


def sync_upward(folder: Path, *, top: Path) -> None:
    """Make the names of `folder` and of every folder above it, up to `top`, durable."""
    for inner in (folder, *folder.parents):
        sync_folder(inner)
        if inner == top:
            break


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Turn what the file system says into a StoreError that says what could not be done."""
    try:
        yield
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise StoreError(
            f"could not {what}: {error.strerror or error}{where}; nothing half-done is visible, "
            "and the same again is safe once that is mended"
        ) from error


@contextmanager
def locked(path: Path, *, shared: bool = False) -> Iterator[None]:
    """Hold the lock file `path` (flock(2)); a crash gives it up. The file itself stays."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def is_free(path: Path) -> bool:
    """Whether nobody holds the lock file `path` now."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True


def _write(path: Path, data: bytes, *, durable: bool) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        if durable:
            os.fsync(fd)
    finally:
        os.close(fd)


def _sync_file(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
