"""The trash: files are moved there in one step before they are deleted, so no reader finds half of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from muster.volumes.layout import Layout
from muster.volumes.sharing import kept_known
from muster.volumes.tree import files_of, remove, unlock

_TRASHED = re.compile(r"(\d+)-[0-9a-f]+\Z")


def delete(layout: Layout, folder: Path) -> int:
    """Delete a folder without readers at once, and return its size in bytes.

    It is moved first: so no other collection finds it, and no surviving rank writes to it.
    """
    taken = layout.discard(folder)
    return remove_all(layout, [taken]) if taken is not None else 0


def empty(layout: Layout, *, before: float) -> int:
    """Unlink files that were put into the trash until `before`; return their size in bytes."""
    matches = ((entry, _TRASHED.match(entry.name)) for entry in layout.trash.iterdir())
    return remove_all(layout, [entry for entry, match in matches if match and int(match[1]) <= before])


def remove_all(layout: Layout, trashed: Sequence[Path]) -> int:
    """Unlink entries of the trash, and return their size in bytes; errors leave files for the next time."""
    freed = 0
    for entry in trashed:
        with suppress(OSError):  # a job may have left folders that even their owner cannot read
            unlock(entry)
    with kept_known(layout, trashed):
        for entry in trashed:
            # NFS keeps a file that a reader has open; or another collection removes it too
            with suppress(OSError):
                size_bytes = _unlinked_bytes(entry)
                remove(entry)
                freed += size_bytes
    return freed


def _unlinked_bytes(path: Path) -> int:
    """Return the bytes of the files all of whose names are in an entry."""
    found = [each.stat(follow_symlinks=False) for each in files_of(path)] if path.is_dir() else [path.lstat()]
    names = Counter((each.st_ino, each.st_nlink, each.st_size) for each in found)
    return sum(size_bytes for (_, links, size_bytes), there in names.items() if there == links)
