"""The replica's last act: sync the staged files to disk, and list them in a part-manifest."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from muster.core.data import CHECKPOINTS
from muster.core.errors import SpecError
from muster.core.replica import PartManifest, Replica
from muster.core.wire import dumps

_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def seal(replica: Replica) -> PartManifest:
    """Sync every staged file, then write the part-manifest, whole or not at all.

    :raises SpecError: a staged entry is neither a file nor a folder; the message names it.
    :raises OSError: the disk is full or failing; nothing is sealed then.
    """
    for name, folder in replica.staging.items():
        _check_folder(name, folder)
    # What the workers of an engine write belongs to the first replica, whose folders they may see as theirs.
    own = {} if replica.works else replica.staging
    staged = {
        name: dict(sorted(_files(name, own[name]))) if name in own else {} for name in sorted(replica.staging)
    }
    kept = [replica.checkpoints] if CHECKPOINTS in replica.spec.outputs else []
    for folder in (*replica.staging.values(), *kept):
        sync(folder)
    part = PartManifest(
        job_id=replica.job_id,
        attempt=replica.attempt,
        role=replica.role,
        index=replica.index,
        files=staged,
    )
    write_durably(replica.sealed, dumps(part))
    return part


def write_durably(path: str, text: str) -> None:
    """Write a file so that after any crash it is there whole or not at all."""
    part = f"{path}.part"
    with open(part, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def sync(folder: str) -> None:
    """Write everything below `folder` to disk, in one call for its whole file system.

    syncfs reports write-back errors since Linux 5.8; the commit finds errors before that, since it
    reads every file.
    """
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if libc.syncfs(handle) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), folder)
    finally:
        os.close(handle)


def _files(output: str, root: str) -> Iterator[tuple[str, int]]:
    """Yield every file below `root` with its size in bytes; refuse all but files and folders."""
    pending = [""]
    while pending:
        below = pending.pop()
        with os.scandir(os.path.join(root, below)) as entries:
            found = list(entries)
        for entry in found:
            path = f"{below}{entry.name}"
            status = entry.stat(follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                pending.append(path + "/")
            elif stat.S_ISREG(status.st_mode):
                _check_name(output, path)
                yield path, status.st_size
            else:
                raise SpecError(
                    f"output {output!r} holds {_KINDS.get(stat.S_IFMT(status.st_mode), 'something else')}, "
                    f"{path!r:.200}: a version holds files and folders only; write the file itself"
                )


def _check_folder(output: str, folder: str) -> None:
    if os.path.islink(folder) or not os.path.isdir(folder):
        raise SpecError(
            f"output {output!r}: its folder was removed or replaced by something else; write into the folder that is given"
        )


def _check_name(output: str, path: str) -> None:
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise SpecError(f"output {output!r} holds {path!r:.200}: file names must be UTF-8") from error
