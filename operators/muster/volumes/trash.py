"""What is deleted goes into the trash first, in one step: nothing finds half of it, and a reader may finish."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from muster.volumes.layout import Layout
from muster.volumes.sharing import kept_known
from muster.volumes.tree import files_of, remove, unlock

_TRASHED = re.compile(r"(\d+)-[0-9a-f]+\Z")


def delete(layout: Layout, folder: Path) -> int:
    """Delete at once what is not read any more, and return its size in bytes.

    It is moved first: from then on no other collection finds it, and no rank that lives on writes it.
    """
    taken = layout.discard(folder)
    return remove_all(layout, [taken]) if taken is not None else 0


def empty(layout: Layout, *, before: float) -> int:
    """Remove what was put into the trash until `before`; return its size in bytes."""
    matches = ((entry, _TRASHED.match(entry.name)) for entry in layout.trash.iterdir())
    return remove_all(layout, [entry for entry, match in matches if match and int(match[1]) <= before])


def remove_all(layout: Layout, trashed: Sequence[Path]) -> int:
    """Remove what lies in the trash, and return its size in bytes; what cannot go waits for the next time."""
    freed = 0
    for entry in trashed:
        with suppress(OSError):  # what a job left there may be shut even for who owns it
            unlock(entry)
    with kept_known(layout, trashed):
        for entry in trashed:
            # a reader has a file of it open, and NFS keeps that; or another collection removes it too
            with suppress(OSError):
                size_bytes = _unlinked_bytes(entry)
                remove(entry)
                freed += size_bytes
    return freed


def _unlinked_bytes(path: Path) -> int:
    stats = (
        [entry.stat(follow_symlinks=False) for entry in files_of(path)] if path.is_dir() else [path.lstat()]
    )
    return sum(found.st_size for found in stats if found.st_nlink == 1)
