"""Checking a store: whether every committed version is what was committed, and what lies about.

A quick check compares manifests with the files that are there and their sizes; a deep one hashes
every file again. Nothing is changed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from muster.core import wire
from muster.core.address import pinned
from muster.core.errors import MusterError
from muster.volumes import manifest
from muster.volumes.base import Record
from muster.volumes.catalog import committed, uncommitted
from muster.volumes.hashing import hash_file
from muster.volumes.manifest import Entry
from muster.volumes.retention import leftovers
from muster.volumes.tree import files_of

if TYPE_CHECKING:
    from muster.volumes.folder import FolderStore

_RESTORE = "retire this version and run the stage that wrote it again, or restore the store from a backup"
_RESTORE_RECORD = "its data is gone; where it came from can only come back from a backup of the store"

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing that is not as it should be.

    :param where: an address, or a path below the store.
    :param harmless: no version is touched by it; gc takes it away.
    """

    where: str
    what: str
    advice: str
    harmless: bool = False


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a check found. `clean`: every committed version is whole."""

    versions: int
    files: int
    size_bytes: int
    problems: tuple[Problem, ...]

    @property
    def clean(self) -> bool:
        """Whether no committed version is damaged; leftovers that gc takes away do not count."""
        return all(problem.harmless for problem in self.problems)


def check(store: FolderStore, *, deep: bool = False, progress: Progress | None = None) -> Report:
    """Check every committed version, and look for what crashes left behind.

    :param deep: hash every file again.
    :param progress: called with an address, how many versions are checked and how many there are.
    """
    problems: list[Problem] = []
    versions = sorted(_committed(store, problems))
    files = size_bytes = 0
    for done, (volume, number) in enumerate(versions):
        address = pinned(volume, number)
        if progress is not None:
            progress(address, done, len(versions))
        with store.steady():  # gc takes nothing away while we look
            entries = _check_version(store.layout.version(volume, number), address, problems, deep=deep)
        files += len(entries)
        size_bytes += sum(entry.size_bytes for entry in entries.values())
    problems += _leftovers(store)
    return Report(versions=len(versions), files=files, size_bytes=size_bytes, problems=tuple(problems))


def _committed(store: FolderStore, problems: list[Problem]) -> Iterator[tuple[str, int]]:
    """Every version that a commit record names, whether its folder is there or not."""
    for path in (store.layout.root / "commits").glob("*.json"):
        try:
            for places in (committed(store.layout, path.stem) or {}).values():
                yield from places
        except MusterError as error:
            problems.append(Problem(where=str(path), what=str(error), advice=_RESTORE))


def _check_version(folder: Path, address: str, problems: list[Problem], *, deep: bool) -> Mapping[str, Entry]:
    """Add what is wrong with one version to `problems`; return the files it should hold."""
    try:
        entries = manifest.read(folder / "MANIFEST")
        record = wire.loads(Record, (folder / "RECORD.json").read_bytes())
    except FileNotFoundError as error:
        problems.append(Problem(where=address, what=f"missing: {error.filename}", advice=_RESTORE))
        return {}
    except MusterError as error:
        gone = _is_buried(folder)
        advice = _RESTORE_RECORD if gone else _RESTORE
        problems.append(Problem(where=address, what=f"torn: {error}", advice=advice, harmless=gone))
        return {}
    except OSError as error:
        what = f"cannot be read ({error.strerror}): {error.filename}"
        problems.append(Problem(where=address, what=what, advice=_RESTORE))
        return {}
    if record.digest != manifest.read_head(folder / "MANIFEST").digest:
        problems.append(Problem(where=address, what="manifest and record name two digests", advice=_RESTORE))
    if _is_buried(folder):
        return {}
    problems += _check_data(folder / "data", entries, address, deep=deep)
    return entries


def _is_buried(folder: Path) -> bool:
    """Whether gc took the version's data away."""
    return (folder / "TOMBSTONE").is_file() and not (folder / "data").is_dir()


def _check_data(data: Path, entries: Mapping[str, Entry], address: str, *, deep: bool) -> Iterator[Problem]:
    base = len(str(data)) + 1
    there = {entry.path[base:] for entry in files_of(data)} if data.is_dir() else set()
    for path in sorted(there - entries.keys()):
        yield Problem(where=address, what=f"extra file {path!r:.200}", advice=f"delete {data}/{path}")
    for path, entry in sorted(entries.items()):
        what = _compare(f"{data}/{path}", entry, deep=deep)
        if what:
            yield Problem(where=address, what=f"{what}: {path!r:.200}", advice=_RESTORE)


def _compare(file: str, entry: Entry, *, deep: bool) -> str:
    """What is wrong with a file, which is asked for by its name: NFS lists late what another machine wrote."""
    try:
        return _difference(file, entry, deep=deep)
    except (FileNotFoundError, NotADirectoryError):
        return "missing file"
    except OSError as error:  # a disk that fails: what else is damaged shall be known too
        return f"cannot be read ({error.strerror})"


def _difference(file: str, entry: Entry, *, deep: bool) -> str:
    status = os.lstat(file)
    if not stat.S_ISREG(status.st_mode):
        return "no regular file"
    if status.st_size != entry.size_bytes:
        return f"{status.st_size} bytes instead of {entry.size_bytes}"
    if status.st_mode & 0o222:
        return "writable file"
    if deep and hash_file(file) != entry.hash:
        return "changed content"
    return ""


def _leftovers(store: FolderStore) -> Iterator[Problem]:
    for folder, job_id in uncommitted(store.layout):
        yield Problem(
            where=str(folder),
            what=f"the commit of job {job_id} was cut off; nobody sees this version",
            advice="submit the job again to complete it; gc takes it away once the job has ended",
            harmless=True,
        )
    for job_id in leftovers(store):
        staging = store.layout.staging(job_id)
        if any(path.name != "sealed" for path in staging.glob("*/*")):
            what = f"files that job {job_id} staged and that nobody will commit"
            yield Problem(where=str(staging), what=what, advice="run `muster volumes gc`", harmless=True)
