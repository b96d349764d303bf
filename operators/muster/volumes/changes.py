"""Which of the author's files differ between two snapshots of code, as far as a job could tell."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from muster.core.errors import NotFound

if TYPE_CHECKING:  # a Dag file imports this module, and the store's are heavy
    from muster.core.job import JobSpec
    from muster.volumes.base import Made
    from muster.volumes.protocols import LocalStore

_CACHES = "__pycache__"

Read = Callable[[str], bytes | None]
"""Returns what a file of a snapshot holds; None where it has no such file."""


def changed(files: Collection[str], then: Read, now: Read) -> tuple[str, ...]:
    """Name those of `files` that read differently, sorted.

    Beside a module counts what Python would import in its place: ``etl/__init__.py`` beside ``etl.py``.
    """
    names = {*files, *(f"{name.removesuffix('.py')}/__init__.py" for name in files if name.endswith(".py"))}
    return tuple(sorted(name for name in names if _meant(name, then(name)) != _meant(name, now(name))))


def changed_since(made: Made, now: JobSpec, store: LocalStore) -> tuple[str, ...] | None:
    """Name the files by which the code of a job differs from what a version was made with.

    A job of one role tells which files it read. Of a command, and of several roles, every file of the code counts.

    :return: None where the code differs and it cannot be told by what.
    """
    files = made.modules if len(made.spec.roles) == 1 else None
    return code_changed(made.spec.code, now.code, store, files=files)


def code_changed(
    then: str | None, now: str | None, store: LocalStore, *, files: Collection[str] | None = None
) -> tuple[str, ...] | None:
    """Name the files by which two snapshots of code differ, sorted.

    :param files: those that count; None: all.
    :return: None where they differ and it cannot be told by what: gc has taken one away, or permissions changed.
    """
    if then == now:
        return ()
    if then is None or now is None:
        return None
    try:
        before, after = store.code(then), store.code(now)
    except NotFound:
        return None
    if files is None:
        return tuple(name for name, _, _ in differing_files(before, after)) or None
    return changed(files, partial(read_below, before), partial(read_below, after))


def differing_files(before: Path, after: Path) -> Iterator[tuple[str, Path | None, Path | None]]:
    """Yield each file that differs between two folders of code: its path in them, sorted, and it in both; None where it is not."""
    old, new = files_below(before), files_below(after)
    for name in sorted(old.keys() | new.keys()):
        if read_below(before, name) != read_below(after, name):
            yield name, old.get(name), new.get(name)


def files_below(root: Path) -> dict[str, Path]:
    """Return every file below a folder that no other process writes, by its path in it, sorted."""
    return {path.relative_to(root).as_posix(): path for path in sorted(root.rglob("*")) if path.is_file()}


def read_below(root: Path, name: str) -> bytes | None:
    """Return what a file below a folder holds, or the names in a folder, which ends in ``/``; None where there is none."""
    try:
        if name.endswith("/"):
            return "\n".join(
                sorted(each.name for each in (root / name).iterdir() if each.name != _CACHES)
            ).encode()
        return (root / name).read_bytes()
    except OSError:
        return None


def _meant(name: str, data: bytes | None) -> bytes | None:
    """What a module means: the same wherever a decorated function stands in its file.

    Blank lines below the first line count only where that line ends inside a text in quotes or in brackets.
    """
    if data is None or not name.endswith(".py"):
        return data
    head, line, rest = data.partition(b"\n")
    if not rest.startswith((b"\n", b"\r\n")) or not _is_whole(head):
        return data
    return head + line + rest.lstrip(b"\r\n")


def _is_whole(line: bytes) -> bool:
    try:
        compile(line + b"\n", "", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return True
