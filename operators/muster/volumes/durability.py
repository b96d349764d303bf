"""File operations safe from power cuts, kills and NFS: whole files, synced names, locks that die with their holder."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from muster.core.errors import StoreError
from muster.core.holding import closing_handle, write_all
from muster.core.locks import is_locked, take
from muster.core.settings import whose

TEMPORARY = ".new-"

_ASK_AGAIN = frozenset({errno.EIO, errno.ESTALE, errno.ETIMEDOUT})
_STALE_READS = 5
# statfs(2): ext, XFS, btrfs, ZFS, f2fs, bcachefs, tmpfs, overlay
_LOCAL = frozenset(
    {0xEF53, 0x58465342, 0x9123683E, 0x2FC12FC1, 0xF2F52010, 0xCA451A4E, 0x01021994, 0x794C7630}
)
# statfs(2): NFS, SMB, CIFS, SMB2
_ASKS_A_SERVER = frozenset({0x6969, 0x517B, 0xFF534D42, 0xFE534D42})
_turns = threading.Condition()
_holders: dict[str, int] = {}


def temporary(beside: Path) -> Path:
    """Name a file or folder beside `beside` that readers ignore and no other process uses."""
    return beside.parent / f"{TEMPORARY}{os.urandom(8).hex()}"


def write_whole(path: Path, data: str | bytes, *, durable: bool = True, mode: int = 0o644) -> None:
    """Replace `path` by `data`: a reader sees the old file or the new one, never a part.

    :param durable: return only when the file survives a power cut.
    :param mode: permission bits (open(2)).
    """
    new = temporary(path)
    try:
        _write(new, data.encode() if isinstance(data, str) else data, durable=durable, mode=mode)
        rename(new, path)
    except BaseException:
        with suppress(OSError):
            new.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


def read_whole(path: Path) -> bytes:
    """Read a file that others replace: on NFS the opened file may be gone before it is read (ESTALE)."""
    for _ in range(_STALE_READS):
        try:
            return path.read_bytes()
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
    return path.read_bytes()


def text_of(path: Path) -> str | None:
    """Return the text of a small file that others replace; None where there is none."""
    with suppress(FileNotFoundError):
        return read_whole(path).decode(errors="replace")
    return None


def rename(source: Path | str, target: Path | str) -> None:
    """Rename (rename(2)), and check the result where an error may be wrong.

    An NFS client that gets no reply sends the call again, and is then told that `source` does not exist,
    since its first call moved it. So the rename is done if `source` is gone and `target` is there. Other
    errors may be retried.

    :param source: a name that is moved to `target` and nowhere else.
    """
    for again in (True, False):
        try:
            os.rename(source, target)  # noqa: PTH104 - may be text
        except FileNotFoundError:
            if not os.path.lexists(target):
                raise
        except OSError as error:
            if again and error.errno in _ASK_AGAIN:
                continue
            raise
        return


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable."""
    with closing_handle(os.open(folder, os.O_RDONLY | os.O_DIRECTORY)) as fd:
        os.fsync(fd)


def sync_all(folder: Path) -> None:
    """Make everything written so far on the file system of `folder` durable, in one call (syncfs(2))."""
    import ctypes

    syncfs = ctypes.CDLL(None, use_errno=True).syncfs
    with closing_handle(os.open(folder, os.O_RDONLY | os.O_DIRECTORY)) as fd:
        if syncfs(fd) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(folder))


def symlink(text: str, path: Path | str) -> None:
    """Make a symbolic link (symlink(2)); an existing link with this text is no error: NFS may ask twice.

    :raises FileExistsError: something else is there.
    """
    try:
        os.symlink(text, path)  # noqa: PTH211 - may be text
    except FileExistsError:
        if link_text(path) != text:
            raise


def link_text(path: Path | str) -> str | None:
    """Return the text of a symbolic link; None where it is gone, or is no link."""
    try:
        return os.readlink(path)  # noqa: PTH115 - it need be no path
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.EINVAL):
            raise
        return None


def is_local(folder: Path) -> bool:
    """Whether `folder` is on a disk of this machine, whose syncfs is a barrier; NFS and FUSE give no such promise."""
    return file_system(folder) in _LOCAL


def lends_leases(path: Path | str) -> bool:
    """Whether this machine itself decides about leases (F_SETLEASE) on a file.

    Linux' clients of NFSv4 and SMB grant one only if the server has delegated the file to them, which many
    never do. Otherwise they answer EAGAIN, as for a file that is open for writing.
    """
    return file_system(path) not in _ASKS_A_SERVER


def file_system(path: Path | str) -> int | None:
    """Return the type of a path's file system, a magic number of statfs(2); None where it is unknown."""
    import ctypes

    found = (ctypes.c_long * 32)()  # larger than any struct statfs, which begins with the type
    libc = ctypes.CDLL(None, use_errno=True)
    return found[0] & 0xFFFFFFFF if libc.statfs(os.fsencode(path), found) == 0 else None


def sync_tree(folder: Path) -> None:
    """Make a tree durable file by file, for file systems whose syncfs is no barrier (NFS)."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(16) as pool:
        for inner, _, names in os.walk(folder, topdown=False):
            paths = [f"{inner}/{name}" for name in names]
            list(pool.map(_sync_file, [path for path in paths if not os.path.islink(path)]))  # noqa: PTH114 - text
            sync_folder(Path(inner))


def sync_upward(folder: Path, *, top: Path) -> None:
    """Make the names of `folder` and of every folder above it, up to `top`, durable."""
    for inner in (folder, *folder.parents):
        sync_folder(inner)
        if inner == top:
            break


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Turn an OSError into a StoreError that says what could not be done."""
    try:
        yield
    except OSError as error:
        where = f" ({error.filename}{whose(error)})" if error.filename else ""
        raise StoreError(
            f"could not {what}: {error.strerror or error}{where}; nothing half-done is visible, "
            "and the same again is safe once that is mended"
        ) from error


@contextmanager
def locked(path: Path, *, shared: bool = False) -> Iterator[None]:
    """Hold the lock file `path` (flock(2)); a crash releases it. The file itself stays.

    Between threads of one process it holds even where flock has no effect; there, one process owns the store.
    """
    with (
        _turn(str(path), shared=shared),
        closing_handle(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)) as fd,
    ):
        take(fd, shared=shared)
        yield


def is_free(path: Path) -> bool:
    """Whether no process holds the lock file `path` now."""
    return str(path) not in _holders and not is_locked(path)


@contextmanager
def _turn(key: str, *, shared: bool) -> Iterator[None]:
    """Let threads of this process in one at a time, or together those that share."""
    with _turns:
        _turns.wait_for(lambda: _holders.get(key, 0) >= 0 if shared else key not in _holders)
        _holders[key] = _holders.get(key, 0) + 1 if shared else -1
    try:
        yield
    finally:
        with _turns:
            if _holders[key] > 1:
                _holders[key] -= 1
            else:
                del _holders[key]
            _turns.notify_all()


def _start_afresh() -> None:
    """Reset after a fork: in the child no other thread lives on to release its locks."""
    global _turns
    _turns = threading.Condition()
    _holders.clear()


os.register_at_fork(after_in_child=_start_afresh)


def _write(path: Path, data: bytes, *, durable: bool, mode: int) -> None:
    with closing_handle(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)) as fd:
        write_all(fd, data)
        if durable:
            os.fsync(fd)


def _sync_file(path: str) -> None:
    with closing_handle(os.open(path, os.O_RDONLY)) as fd:
        os.fsync(fd)


def newest_first(folder: Path) -> list[Path]:
    """Return the files of a folder whose names begin with their time; none where it is missing."""
    with suppress(FileNotFoundError):
        paths = [path for path in folder.iterdir() if path.name[0] != "."]
        return sorted(paths, key=lambda path: path.name, reverse=True)
    return []


def prune(folder: Path, *, most: int) -> None:
    """Delete all but the newest of such files."""
    for path in newest_first(folder)[most:]:
        path.unlink(missing_ok=True)
