"""Which store gave a folder's versions their numbers: the folder's own, or the one that it is a mirror of."""

from __future__ import annotations

import json
from pathlib import Path

from muster.core.errors import Corrupt
from muster.volumes.commit_records import flaw
from muster.volumes.durability import write_whole
from muster.volumes.layout import MARKER, MIRROR, write_marker


def mirrored(root: Path) -> str:
    """Return the uuid of the store that `root` is a mirror of; empty where it is none."""
    return _read(root / MIRROR, "of")


def owner(root: Path) -> str:
    """Return the uuid of the store that gave the versions below `root` their numbers."""
    return mirrored(root) or _read(root / MARKER, "uuid")


def become_mirror(root: Path, owner: str) -> None:
    """Make a folder the mirror of a store; from now on no job can commit to it."""
    write_whole(root / MIRROR, json.dumps({"format": 1, "of": owner}) + "\n")


def become(root: Path, owner: str) -> None:
    """Have a folder be the store `owner` itself, whose versions are restored to it."""
    write_marker(root, json.loads((root / MARKER).read_bytes()) | {"uuid": owner})


def _read(path: Path, name: str) -> str:
    try:
        return str(json.loads(path.read_bytes())[name])
    except FileNotFoundError:
        return ""
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Corrupt(f"{path} cannot be read, {flaw(error)}: restore it from a backup") from error
