"""The code that made a version, and what differs between that of two: by file and line."""

from __future__ import annotations

import difflib
from itertools import islice
from pathlib import Path
from typing import Any

from muster.core.errors import NotFound
from muster.core.text import as_shown
from muster.volumes.changes import differing_files, files_below
from muster.volumes.protocols import LocalStore

MOST_BYTES = 512 << 10
MOST_FILES = 50
MOST_LINES = 400


def listed(store: LocalStore, digest: str) -> dict[str, Any]:
    """Return the names and sizes of the files of a snapshot. :raises NotFound: gc deleted it."""
    known = files_below(store.code(digest))
    return {
        "code": digest,
        "files": [{"path": p, "size_bytes": where.stat().st_size} for p, where in known.items()],
    }


def text(store: LocalStore, digest: str, path: str) -> str:
    """Return one file as text, at most 512 kB of it. :raises NotFound: the snapshot has none of that name."""
    known = files_below(store.code(digest))
    if path not in known:
        raise NotFound(f"code {digest[:11]} holds no {path!r:.120}; it holds {', '.join(islice(known, 8))}")
    return _read(known[path])


def changes(store: LocalStore, before: str | None, after: str | None) -> list[dict[str, Any]]:
    """Return each file that differs between two snapshots: its path, how it changed, and its lines as a diff.

    Nothing where one of them is unknown, or gc deleted it.
    """
    if before == after or before is None or after is None:
        return []
    try:
        found = differing_files(store.code(before), store.code(after))
    except NotFound:
        return []
    return [_change(*each) for each in islice(found, MOST_FILES)]


def _change(path: str, old: Path | None, new: Path | None) -> dict[str, Any]:
    how = "new" if old is None else "gone" if new is None else "changed"
    was, now = (_read(each).splitlines() if each else [] for each in (old, new))
    lines = list(islice(difflib.unified_diff(was, now, lineterm="", n=3), 2, MOST_LINES + 3))
    return {"path": path, "change": how, "lines": lines[:MOST_LINES], "cut": len(lines) > MOST_LINES}


def _read(path: Path) -> str:
    with path.open("rb") as file:
        data = file.read(MOST_BYTES)
    return "(not text)" if b"\0" in data else as_shown(data.decode("utf-8", "replace"))
