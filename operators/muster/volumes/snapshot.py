"""Code snapshots: what travels of a Dag's folder, kept once under the digest of its content.

A snapshot's digest covers relative paths, contents and the executable bit, nothing else: the same
folder on another machine, or a day later, is the same snapshot.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from muster.core.errors import SpecError
from muster.volumes.durability import sync_all, sync_folder, sync_tree, temporary
from muster.volumes.hashing import hash_file
from muster.volumes.layout import Layout
from muster.volumes.manifest import digest_of
from muster.volumes.tree import copy_file, folders_of, remove, set_modes

LIMIT_BYTES = 100 << 20
IGNORE_FILE = ".musterignore"
ALWAYS_IGNORED = (
    ".git",
    ".env",
    "*.pem",
    "__pycache__",
    "*.pyc",
    ".venv",
    ".muster",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
)


def collect(folder: Path) -> list[str]:
    """Return the paths below `folder` that travel with a job, sorted.

    What :data:`ALWAYS_IGNORED` and ``.musterignore`` (gitignore syntax) name stays behind.

    :raises SpecError: a link leaves the folder, a file is a device, the whole is larger than 100 MiB.
    """
    root = folder.resolve()
    if not root.is_dir():
        raise SpecError(f"code folder {folder} is not there: name the folder whose files travel with the job")
    sizes = {path: _checked(root, path) for path in _walk(root)}
    if sum(sizes.values()) > LIMIT_BYTES:
        biggest = sorted(sizes, key=lambda path: -sizes[path])[:3]
        named = ", ".join(f"{path} ({sizes[path] / 2**20:.0f} MiB)" for path in biggest)
        raise SpecError(
            f"code folder {folder} holds {sum(sizes.values()) / 2**20:.0f} MiB, at most {LIMIT_BYTES >> 20} travel: "
            f"the biggest are {named}; put data into a volume, or name it in {IGNORE_FILE}"
        )
    return sorted(sizes)


def keep(layout: Layout, root: Path, files: Sequence[str]) -> str:
    """Copy `files` into the store as a snapshot and return its digest; one that is there is kept.

    :raises SpecError: a path leaves `root`, or what it names does.
    """
    base = root.resolve()
    for path in files:
        _checked(base, path)
    new = temporary(layout.root / "code" / "snapshot")
    try:
        new.mkdir()
        digest = digest_of("".join(_copy(base, new, path) for path in sorted(set(files))).encode())
        target = layout.code(digest)
        if not target.is_dir():
            _place(layout, new, target)
    finally:
        remove(new)
    return digest


def digest(root: Path, files: Sequence[str]) -> str:
    """Return the digest that :func:`keep` would give `files`, without keeping anything."""
    base = root.resolve()
    for path in files:
        _checked(base, path)
    reals = ((path, (base / path).resolve()) for path in sorted(set(files)))
    return digest_of("".join(_line(path, real, _runs(real)) for path, real in reals).encode())


def _walk(root: Path) -> Iterator[str]:
    ignored = _patterns(root)
    waiting = [""]
    while waiting:
        inner = waiting.pop()
        for entry in os.scandir(root / inner):
            path = f"{inner}{entry.name}"
            folder = entry.is_dir(follow_symlinks=False)
            if ignored.match_file(f"{path}/" if folder else path):
                continue
            if folder:
                waiting.append(f"{path}/")
            else:
                yield path


def _patterns(root: Path):  # type: ignore[no-untyped-def]
    from pathspec import GitIgnoreSpec

    own = root / IGNORE_FILE
    lines = own.read_text().splitlines() if own.is_file() else []
    try:
        return GitIgnoreSpec.from_lines([*lines, *ALWAYS_IGNORED])
    except ValueError as error:
        raise SpecError(f"{own} holds a pattern that cannot be read: {error}") from error


def _checked(root: Path, path: str) -> int:
    """The size of one file that may travel."""
    parts = path.split("/")
    if not path.isprintable() or any(part in ("", ".", "..") for part in parts):
        raise SpecError(f"code file {path!r:.200} is no plain path below {root}: rename it, or ignore it")
    full = root / path
    real = full.resolve()
    if root not in real.parents:
        raise SpecError(
            f"code file {path!r:.200} leads to {real}, outside of {root}: copy it there, or ignore it"
        )
    try:
        found = real.stat()
    except OSError as error:
        raise SpecError(f"code file {path!r:.200} cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(found.st_mode):
        raise SpecError(
            f"code file {path!r:.200} is no regular file (or links to a folder): ignore it in {IGNORE_FILE}"
        )
    return found.st_size


def _copy(base: Path, new: Path, path: str) -> str:
    """Copy one file, a link as what it leads to, and return its line of the digest."""
    real = (base / path).resolve()
    target = new / path
    target.parent.mkdir(parents=True, exist_ok=True)
    copy_file(str(real), str(target))
    runs = _runs(real)
    target.chmod(0o555 if runs else 0o444)
    return _line(path, target, runs)


def _runs(file: Path) -> bool:
    return bool(file.stat().st_mode & 0o100)


def _line(path: str, file: Path, runs: bool) -> str:
    return f"{hash_file(str(file))} {'x' if runs else '-'} {path}\n"


def _place(layout: Layout, new: Path, target: Path) -> None:
    set_modes(folders_of(new)[1:], 0o555)
    if layout.syncfs:
        sync_all(layout.root)
    else:
        sync_tree(new)
    try:
        new.rename(target)
    except OSError:
        if not target.is_dir():
            raise
        return  # another task put the same bytes meanwhile
    target.chmod(0o555)
    sync_folder(target.parent)
