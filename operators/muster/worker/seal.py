"""The replica's last act: sync the staged files to disk, and list them in a part-manifest."""

from __future__ import annotations

import os
from collections.abc import Iterator

from muster.core.data import CHECKPOINTS
from muster.core.errors import SpecError
from muster.core.holding import held_entries
from muster.core.kept import follow, make_relative, refusal
from muster.core.replica import PartManifest, Replica
from muster.core.text import has_control
from muster.core.wire import dumps


def seal(replica: Replica) -> PartManifest:
    """Follow links, sync every staged file, then write the part-manifest, whole or not at all.

    Where an output holds what no version keeps, the part-manifest says so: no commit takes it, and what was written can be fetched.

    :raises SpecError: the folder of an output is gone.
    :raises OSError: the disk is full or failing; nothing is sealed then.
    """
    for name, folder in replica.staging.items():
        if os.path.islink(folder) or not os.path.isdir(folder):
            raise SpecError(
                f"output {name!r}: its folder was removed or replaced by something else; write into the folder that is given"
            )
    # What the workers of an engine write belongs to the first replica, whose folders they may see as theirs.
    own = {} if replica.works else replica.staging
    refused = [
        refusal(f"output {name!r}", odd) for name, folder in sorted(own.items()) if (odd := follow(folder))
    ]
    staged = {
        name: dict(sorted(_files(own[name]))) if name in own else {} for name in sorted(replica.staging)
    }
    kept = [replica.checkpoints] if CHECKPOINTS in replica.spec.outputs else []
    for folder in kept:  # all replicas write it, so the commit follows its links
        make_relative(folder)
    for folder in (*replica.staging.values(), *kept):
        sync(folder)
    part = PartManifest(
        job_id=replica.job_id,
        attempt=replica.attempt,
        role=replica.role,
        index=replica.index,
        files=staged,
        refused=tuple(refused),
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


def _files(root: str) -> Iterator[tuple[str, int]]:
    """Yield every regular file below `root` whose name a manifest can hold, with its size in bytes."""
    for path, entry in held_entries(root):
        if entry.is_file(follow_symlinks=False) and not has_control(path):
            yield path, entry.stat(follow_symlinks=False).st_size
