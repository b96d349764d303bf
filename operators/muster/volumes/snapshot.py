"""Code snapshots: the files of a Dag's folder that travel with a job, stored once under their digest.

A snapshot's digest covers relative paths, contents and the executable bit, nothing else: the same
folder on another machine, or a day later, is the same snapshot.

All readers of the store can read a snapshot, so files that usually hold a secret are left out:
`_SECRETS`, and `_NO_CODE` beside them. ``.musterignore`` in the Dag's folder (gitignore syntax)
leaves out more, and brings files back: ``!fonts.key``.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from muster.core.errors import SpecError
from muster.volumes.durability import rename, sync_folder, temporary
from muster.volumes.hashing import hash_file
from muster.volumes.layout import Layout
from muster.volumes.manifest import digest_of
from muster.volumes.tree import copy_file, folders_of, make_folders, remove, runs, set_modes

if TYPE_CHECKING:  # only needed where a snapshot is made
    from pathspec import GitIgnoreSpec

LIMIT_BYTES = 100 << 20
LIMIT_FILES = 20_000
_IGNORE_FILE = ".musterignore"
_SECRETS = (
    ".env",
    ".env.*",
    "*.pem",
    "*.key",
    "*.p12",
    "*.pfx",
    "*.jks",
    "*.keystore",
    "*.kdbx",
    "id_rsa*",
    "id_dsa*",
    "id_ecdsa*",
    "id_ed25519*",
    ".netrc",
    ".pgpass",
    ".pypirc",
    ".git-credentials",
    ".aws",
    ".docker",
    ".gnupg",
    ".kube",
    ".ssh",
)
_NO_CODE = (
    ".git",
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

    Files that :data:`_SECRETS`, :data:`_NO_CODE` and ``.musterignore`` match are left out. A link travels as
    the file or folder that it leads to.

    :raises SpecError: a link leads out of the folder or to a file that is left out, a file is a device,
        there are too many files or too many bytes.
    """
    root = folder.resolve()
    if not root.is_dir():
        raise SpecError(f"code folder {folder} is not there: name the folder whose files travel with the job")
    ignored = _patterns(root)
    sizes: dict[str, int] = {}
    for path in _walk(root, ignored):
        sizes[path] = _checked(root, path, ignored)
        if len(sizes) > LIMIT_FILES:
            raise SpecError(
                f"code folder {folder} holds more than {LIMIT_FILES} files: name what is no code in {_IGNORE_FILE}"
            )
    _refuse_too_big(folder, sizes)
    return sorted(sizes)


def keep(layout: Layout, root: Path, files: Sequence[str], *, texts: Mapping[str, str] | None = None) -> str:
    """Copy `files` into the store as a snapshot and return its digest; an existing one is kept.

    :param texts: files to write with this text, by path, in place of any of `files`.
    :raises SpecError: a path, or the link at it, leads out of `root`.
    """
    base, texts = root.resolve(), texts or {}
    check(base, texts)
    copied = set(files) - set(texts)
    for path in copied:
        _checked(base, path)
    new = temporary(layout.root / "code" / "snapshot")
    try:
        new.mkdir()
        lines = {path: _copy(base, new, path) for path in copied}
        lines |= {path: _write(new, path, text) for path, text in texts.items()}
        digest = digest_of("".join(lines[path] for path in sorted(lines)).encode())
        target = layout.code(digest)
        if not target.is_dir():
            _place(layout, new, target)
    finally:
        remove(new)
    return digest


def check(root: Path, paths: Iterable[str]) -> None:
    """Refuse a path that is not plain and below `root`. :raises SpecError: names the path."""
    for path in paths:
        _check_plain(root, path)


def digest(root: Path, files: Sequence[str]) -> str:
    """Return the digest that :func:`keep` would give `files`, without keeping anything."""
    base = root.resolve()
    for path in files:
        _checked(base, path)
    reals = ((path, (base / path).resolve()) for path in sorted(set(files)))
    return digest_of("".join(_line(path, real, runs(real.stat())) for path, real in reals).encode())


def _refuse_too_big(folder: Path, sizes: Mapping[str, int]) -> None:
    total = sum(sizes.values())
    if total > LIMIT_BYTES:
        biggest = sorted(sizes, key=lambda path: -sizes[path])[:3]
        named = ", ".join(f"{path!r:.80} ({sizes[path] / 2**20:.0f} MiB)" for path in biggest)
        raise SpecError(
            f"code folder {folder} holds {total / 2**20:.0f} MiB, at most {LIMIT_BYTES >> 20} travel; the "
            f"biggest are {named}: put data into a volume, or name it in {_IGNORE_FILE}"
        )


def _walk(root: Path, ignored: GitIgnoreSpec) -> Iterator[str]:
    waiting = [""]
    while waiting:
        inner = waiting.pop()
        try:
            entries = list(os.scandir(root / inner))
        except OSError as error:
            raise SpecError(f"code folder {root / inner} cannot be read: {error.strerror}") from error
        for entry in entries:
            path = f"{inner}{entry.name}"
            if not entry.is_dir(follow_symlinks=False):
                if not ignored.match_file(path):
                    yield path
            elif not ignored.match_file(f"{path}/"):
                waiting.append(f"{path}/")


def _patterns(root: Path) -> GitIgnoreSpec:
    from pathspec import GitIgnoreSpec

    own = root / _IGNORE_FILE
    try:
        lines = own.read_text().splitlines() if own.is_file() else []
        return GitIgnoreSpec.from_lines([*_SECRETS, *_NO_CODE, *lines])
    except ValueError as error:
        raise SpecError(f"{own} cannot be read as gitignore patterns: {error}") from error


def _checked(root: Path, path: str, ignored: GitIgnoreSpec | None = None) -> int:
    """Return the size of one file, or refuse it."""
    _check_plain(root, path)
    real = Path(os.path.realpath(root / path))  # does not raise on links in a circle
    if not real.is_relative_to(root):
        raise SpecError(
            f"code file {path!r:.200} leads to {real}, outside of {root}: copy it there, or name the link in {_IGNORE_FILE}"
        )
    if ignored is not None and ignored.match_file(real.relative_to(root)):
        raise SpecError(
            f"code file {path!r:.200} leads to {real}, which stays behind: name the link in {_IGNORE_FILE} too"
        )
    try:
        found = real.stat()
    except OSError as error:
        raise SpecError(f"code file {path!r:.200} cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(found.st_mode):
        raise SpecError(
            f"code file {path!r:.200} is no regular file, or a link to a folder: name it in {_IGNORE_FILE}"
        )
    return found.st_size


def _check_plain(root: Path, path: str) -> None:
    if not path.isprintable() or any(part in ("", ".", "..") for part in path.split("/")):
        raise SpecError(
            f"code file {path!r:.200} is no plain path below {root}: rename it, or name it in {_IGNORE_FILE}"
        )


def _write(new: Path, path: str, text: str) -> str:
    """Write one file and return its line for the digest."""
    target = new / path
    make_folders(target.parent)
    target.write_text(text, encoding="utf-8", newline="")
    target.chmod(0o444)
    return _line(path, target, executable=False)


def _copy(base: Path, new: Path, path: str) -> str:
    """Copy one file, a link as its target, and return its line for the digest."""
    real = (base / path).resolve()
    target = new / path
    make_folders(target.parent)
    copy_file(str(real), str(target))
    executable = runs(real.stat())
    target.chmod(0o555 if executable else 0o444)
    return _line(path, target, executable)


def _line(path: str, file: Path, executable: bool) -> str:
    return f"{hash_file(str(file))} {'x' if executable else '-'} {path}\n"


def _place(layout: Layout, new: Path, target: Path) -> None:
    set_modes(new, folders_of(new)[1:], 0o555)
    layout.sync(new)
    try:
        rename(new, target)
    except OSError:
        if not target.is_dir():
            raise
        return  # another task stored the same bytes meanwhile
    target.chmod(0o555)
    sync_folder(target.parent)
