"""Finds damage: what of a store differs from what was committed, in commit records and versions.

A quick check compares records, manifests, and the names and sizes of files; a deep one hashes every file
again. Nothing is changed. ``muster volumes fsck`` shows the result, and gc deletes nothing while there is
damage.
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from muster.core import wire
from muster.core.address import pinned
from muster.core.errors import Corrupt, MusterError, NotFound, SpecError
from muster.volumes import listing, manifest
from muster.volumes.base import Record
from muster.volumes.commit_records import (
    CommitRecord,
    Place,
    all_commits,
    check_record,
    has_content,
    holder,
    is_buried,
    read_commit,
    retired,
)
from muster.volumes.hashing import hash_file
from muster.volumes.manifest import Entry
from muster.volumes.tree import files_of, runs

if TYPE_CHECKING:
    from muster.volumes.folder import FolderStore

_RESTORE = "retire this version and run the stage that wrote it again, or bring its bytes from a mirror: muster volumes fsck --deep --repair-from MIRROR"
_MISSING, _NO_FILE, _FOREIGN = "missing file", "no regular file", "file of user"
_RESTORE_RECORD = "its data is gone; where it came from can only come back from a backup of the store"

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One problem of a store.

    :param where: an address, or a path below the store.
    :param harmless: it affects no version that is read.
    :param retired: it is the damage of a version that is retired, which is harmless.
    """

    where: str
    what: str
    advice: str
    harmless: bool = False
    retired: bool = False


@dataclass
class DamageFound:
    """The result of a check.

    :param commits: per version the commit record that names it.
    :param unprotected: per job the committed versions whose RECORD.json has no digest in the commit record,
        each with its present digest; only versions without a problem.
    """

    problems: list[Problem] = field(default_factory=list)
    commits: dict[Place, tuple[str, CommitRecord]] = field(default_factory=dict)
    unprotected: dict[str, dict[Place, str]] = field(default_factory=dict)
    files: int = 0
    size_bytes: int = 0


def look(store: FolderStore, *, deep: bool = False, progress: Progress | None = None) -> DamageFound:
    """Check commit records against versions, and versions against commit records.

    :param deep: hash every file again.
    :param progress: called with an address, the number of checked versions and of all.
    """
    found = DamageFound()
    found.problems += _commits(store, found.commits)
    for done, place in enumerate(sorted(found.commits)):
        if progress is not None:
            progress(pinned(*place), done, len(found.commits))
        with store.marks.steady():  # gc deletes nothing meanwhile
            _look_at(store, place, found, deep=deep)
    found.problems += _strays(store, found.commits)
    found.problems = [_forgiven(store, each) for each in found.problems]
    return found


def refuse(store: FolderStore) -> None:
    """Refuse to delete from a damaged store: only a damaged document may say that something must stay.

    :raises Corrupt: the message names what is damaged.
    """
    bad = [each for each in look(store).problems if not each.harmless]
    if bad:
        more = f", and {len(bad) - 1} more" if len(bad) > 1 else ""
        raise Corrupt(
            f"gc takes nothing while the store is damaged: {bad[0].where}: {bad[0].what}{more}; "
            f"`muster volumes fsck` names all of it. {bad[0].advice[0].upper()}{bad[0].advice[1:]}"
        )


def _forgiven(store: FolderStore, problem: Problem) -> Problem:
    """Return a problem of a version that is retired as a harmless one: nothing reads it, and gc deletes it."""
    volume, _, number = problem.where.removeprefix("volume://").rpartition("@")
    if problem.harmless or not number.isdecimal():
        return problem
    if retired(store.layout, store.layout.version(volume, int(number))) is None:
        return problem
    return replace(
        problem, harmless=True, retired=True, advice="it is retired: nothing has to be done, gc deletes it"
    )


def _commits(store: FolderStore, commits: dict[Place, tuple[str, CommitRecord]]) -> Iterator[Problem]:
    """Add every version that a commit record names, whether its folder is there or not."""
    for job_id, commit in all_commits(store.layout):
        if isinstance(commit, Corrupt):
            path = store.layout.root / "commits" / f"{job_id}.json"
            advice = (
                f"bring it from a mirror: muster volumes fsck --repair-from MIRROR; without one restore it from a backup, or delete {path} "
                "and retire the versions that nothing commits any more"
            )
            yield Problem(where=str(path), what=str(commit), advice=advice)
            continue
        for place in commit.places:
            other, _ = commits.setdefault(place, (job_id, commit))
            if other != job_id:
                what = f"the commits of two jobs name it, {other} and {job_id}"
                yield Problem(where=pinned(*place), what=what, advice=_RESTORE)


def _look_at(store: FolderStore, place: Place, found: DamageFound, *, deep: bool) -> None:
    """Check one version, and add its problems to `found`."""
    folder, address = store.layout.version(*place), pinned(*place)
    job_id, commit = found.commits[place]
    problems = found.problems
    before = len(problems)
    try:
        entries = listing.read(folder / "MANIFEST")
        text = (folder / "RECORD.json").read_bytes()
        record = wire.loads(Record, text)
    except FileNotFoundError as error:
        problems.append(_lost(folder, address, f"missing: {error.filename}"))
        return
    except MusterError as error:
        problems.append(_lost(folder, address, f"torn: {error}"))
        return
    except OSError as error:
        what = f"cannot be read ({error.strerror}): {error.filename}"
        problems.append(Problem(where=address, what=what, advice=_RESTORE))
        return
    problems += _record_problems(folder, place, record, text, (job_id, commit))
    if not is_buried(folder):
        problems += check_data(folder / "data", entries, address, deep=deep)
        found.files += len(entries)
        found.size_bytes += entries.size_bytes
    if place not in commit.records and len(problems) == before:
        found.unprotected.setdefault(job_id, {})[place] = manifest.digest_of(text)


def _record_problems(
    folder: Path, place: Place, record: Record, text: bytes, named: tuple[str, CommitRecord]
) -> Iterator[Problem]:
    """Yield the problems of a RECORD.json that can be read."""
    job_id, commit = named
    if record.digest != manifest.read_head(folder / "MANIFEST").digest:
        yield _lost(folder, pinned(*place), "manifest and record name two digests")
    elif record.job_id != job_id:
        what = f"the commit of job {job_id} names it, and its RECORD.json names job {record.job_id!r:.60}"
        yield _lost(folder, pinned(*place), what)
    else:
        try:
            check_record(text, record, place, commit)
        except Corrupt as error:
            yield _lost(folder, pinned(*place), str(error))


def _lost(folder: Path, address: str, what: str) -> Problem:
    gone = is_buried(folder)
    return Problem(where=address, what=what, advice=_RESTORE_RECORD if gone else _RESTORE, harmless=gone)


def _strays(store: FolderStore, commits: Mapping[Place, object]) -> Iterator[Problem]:
    """Yield versions, complete or not, that belong to no commit and no interrupted commit."""
    for volume in store.layout.volumes():
        for number in store.layout.numbers(volume):
            folder = store.layout.version(volume, number)
            if (volume, number) in commits or is_buried(folder) or not has_content(folder):
                continue
            if holder(folder) is None and not _is_committed_now(store, folder, (volume, number)):
                yield Problem(
                    where=pinned(volume, number),
                    what="no commit record names it, though its commit came to its end",
                    advice=f"restore {store.layout.root / 'commits'} from a backup, or retire this version and run the "
                    "stage that wrote it again",
                )


def _is_committed_now(store: FolderStore, folder: Path, place: Place) -> bool:
    """Whether a version was committed after the commit records were read."""
    try:
        record = wire.loads(Record, (folder / "RECORD.json").read_bytes())
        commit = read_commit(store.layout, record.job_id)
    except (SpecError, Corrupt, NotFound, OSError):
        return False
    return commit is not None and place in commit.places


def check_data(data: Path, entries: listing.Listing, address: str, *, deep: bool) -> Iterator[Problem]:
    """Yield the problems of a version's files; with `deep` each is hashed."""
    missing = 0
    owner = data.stat().st_uid if data.is_dir() else -1
    for entry in entries.values():
        what = _compare(f"{data}/{entry.path}", entry, owner=owner, deep=deep)
        missing += what in (_MISSING, _NO_FILE)
        if what.startswith(_FOREIGN):
            file = shlex.quote(f"{data}/{entry.path}")
            advice = f"it is as it was committed, and may be changed by that user: chown -h {owner} {file}"
            yield Problem(where=address, what=f"{what}: {entry.path!r:.200}", advice=advice, harmless=True)
        elif what:
            yield Problem(where=address, what=f"{what}: {entry.path!r:.200}", advice=_RESTORE)
    for path in entries.folders():
        if not (data / path).is_dir():
            yield Problem(where=address, what=f"missing folder: {path!r:.200}", advice=_RESTORE)
    # Names are counted before they are compared: those of a million files would fill the memory.
    if data.is_dir() and sum(1 for _ in files_of(data)) > len(entries) - missing:
        base = len(str(data)) + 1
        for path in sorted(each.path[base:] for each in files_of(data) if each.path[base:] not in entries):
            yield Problem(where=address, what=f"extra file {path!r:.200}", advice=f"delete {data}/{path}")


def _compare(file: str, entry: Entry, *, owner: int, deep: bool) -> str:
    """Return the problem of a file, opened by name, since NFS lists late what another machine wrote."""
    try:
        return _difference(file, entry, owner=owner, deep=deep)
    except (FileNotFoundError, NotADirectoryError):
        return _MISSING
    except OSError as error:  # the disk fails here: go on, to find other damage
        return f"cannot be read ({error.strerror})"


def _difference(file: str, entry: Entry, *, owner: int, deep: bool) -> str:
    status = os.lstat(file)
    if not stat.S_ISREG(status.st_mode):
        return _NO_FILE
    if status.st_size != entry.size_bytes:
        return f"{status.st_size} bytes instead of {entry.size_bytes}"
    writable = status.st_mode & 0o222
    if deep and hash_file(file) != entry.hash:
        return "changed content of a writable file" if writable else "changed content"
    if writable:
        return "writable file"
    if runs(status) != entry.executable:
        return "executable file, which it was not" if runs(status) else "file that was executable, and is not"
    return f"{_FOREIGN} {status.st_uid}" if status.st_uid != owner else ""
