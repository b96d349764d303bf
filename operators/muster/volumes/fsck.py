"""Checks a store: what differs from what was committed, in commit records and versions, and what crashes left behind.

A quick check compares records, manifests, and the names and sizes of files; a deep one hashes every file
again. A check changes no version, except that it writes missing digests of records if asked to. ``muster volumes fsck``
shows the result, and gc deletes nothing while there is damage.
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from muster.core import wire
from muster.core.address import pinned
from muster.core.errors import Corrupt, MusterError, NotFound, SpecError
from muster.core.room import size_of
from muster.volumes import listing, manifest, tombstones
from muster.volumes.base import Checked, Record
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
    uncommitted,
    write_commit,
)
from muster.volumes.hashing import hash_file
from muster.volumes.held import EndedJobs
from muster.volumes.layout import Layout
from muster.volumes.manifest import Entry
from muster.volumes.marks import Marks
from muster.volumes.tree import files_of, runs

_MOST_DAMAGE = 50
"""Problems that are kept of a check, for a later look; the check itself returns all."""


_RESTORE = "retire this version and run the stage that wrote it again, or bring its bytes from a mirror: muster volumes fsck --deep --repair-from MIRROR"
_MISSING, _NO_FILE, _FOREIGN = "missing file", "no regular file", "file of user"
_GONE = "where they came from can only come back from a backup of the store"
_RESTORE_RECORD = f"its data is gone; {_GONE}"
_BRING_TOMBSTONE = "bring it back from a backup of the store; without one leave it there: gc goes on, and its name says which numbers were given out"

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


@dataclass(frozen=True, kw_only=True)
class Report:
    """The result of a check. `clean`: every committed version is whole, and every job's entry can be read."""

    versions: int
    files: int
    size_bytes: int
    problems: tuple[Problem, ...]

    @property
    def clean(self) -> bool:
        """Whether nothing is damaged; leftovers and unprotected records do not count."""
        return all(problem.harmless for problem in self.problems)


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


def check(
    layout: Layout,
    marks: Marks,
    ended: EndedJobs,
    *,
    deep: bool = False,
    protect: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Check every committed version, and look for what crashes left behind.

    :param deep: hash every file again.
    :param protect: write the digests of records that lack one and have no problem.
    :param progress: called with an address, the number of checked versions and of all.
    """
    found = look(layout, marks, deep=deep, progress=progress)
    if protect:
        _protect(layout, found.unprotected)
    else:
        found.problems += _unprotected(layout, found.unprotected)
    found.problems += _leftovers(layout, ended)
    found.problems += (
        Problem(
            where=str(path),
            what=f"{why}: the documents of the deleted versions in it are not found",
            advice=_BRING_TOMBSTONE,
            harmless=True,
        )
        for path, why in tombstones.damaged(layout)
    )
    return Report(
        versions=len(found.commits),
        files=found.files,
        size_bytes=found.size_bytes,
        problems=tuple(found.problems),
    )


def summary(report: Report) -> Checked:
    """Return what is kept of a check."""
    damage = [problem for problem in report.problems if not problem.harmless]
    return Checked(
        versions=report.versions,
        files=report.files,
        size_bytes=report.size_bytes,
        damaged=len(damage),
        damage=tuple(f"{each.where}: {each.what}. {each.advice}" for each in damage[:_MOST_DAMAGE]),
        harmless=len(report.problems) - len(damage),
    )


def look(
    layout: Layout, marks: Marks, *, deep: bool = False, progress: Progress | None = None
) -> DamageFound:
    """Check commit records against versions, and versions against commit records.

    :param deep: hash every file again.
    :param progress: called with an address, the number of checked versions and of all.
    """
    found = DamageFound()
    found.problems += _commits(layout, found.commits)
    for done, place in enumerate(sorted(found.commits)):
        if progress is not None:
            progress(pinned(*place), done, len(found.commits))
        with marks.steady():  # gc deletes nothing meanwhile
            _look_at(layout, place, found, deep=deep)
    found.problems += _strays(layout, found.commits)
    found.problems = [_forgiven(layout, each) for each in found.problems]
    return found


def refuse(layout: Layout, marks: Marks) -> dict[str, CommitRecord]:
    """Refuse to delete from a damaged store: only a damaged document may say that something must stay; return all commit records.

    :raises Corrupt: the message names what is damaged.
    """
    found = look(layout, marks)
    bad = [each for each in found.problems if not each.harmless]
    if bad:
        more = f", and {len(bad) - 1} more" if len(bad) > 1 else ""
        raise Corrupt(
            f"gc takes nothing while the store is damaged: {bad[0].where}: {bad[0].what}{more}; "
            f"`muster volumes fsck` names all of it. {bad[0].advice[0].upper()}{bad[0].advice[1:]}"
        )
    return dict(found.commits.values())


def _forgiven(layout: Layout, problem: Problem) -> Problem:
    """Return a problem of a version that is retired as a harmless one: nothing reads it, and gc deletes it."""
    volume, _, number = problem.where.removeprefix("volume://").rpartition("@")
    if problem.harmless or not number.isdecimal():
        return problem
    if retired(layout, layout.version(volume, int(number))) is None:
        return problem
    return replace(
        problem, harmless=True, retired=True, advice="it is retired: nothing has to be done, gc deletes it"
    )


def _commits(layout: Layout, commits: dict[Place, tuple[str, CommitRecord]]) -> Iterator[Problem]:
    """Add every version that a commit record names, whether its folder is there or not."""
    for job_id, commit in all_commits(layout):
        if isinstance(commit, Corrupt):
            path = layout.root / "commits" / f"{job_id}.json"
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


def _look_at(layout: Layout, place: Place, found: DamageFound, *, deep: bool) -> None:
    """Check one version, and add its problems to `found`."""
    folder, address = layout.version(*place), pinned(*place)
    job_id, commit = found.commits[place]
    problems = found.problems
    before = len(problems)
    try:
        entries = listing.read(folder / "MANIFEST")
        text = (folder / "RECORD.json").read_bytes()
        record = wire.loads(Record, text)
    except FileNotFoundError as error:
        if has_content(folder) or not (tombstones.find(layout, *place) or tombstones.lost_in(layout, *place)):
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


def _strays(layout: Layout, commits: Mapping[Place, object]) -> Iterator[Problem]:
    """Yield versions, complete or not, that belong to no commit and no interrupted commit."""
    for volume in layout.volumes():
        for number in layout.numbers(volume):
            folder = layout.version(volume, number)
            if (volume, number) in commits or is_buried(folder) or not has_content(folder):
                continue
            if holder(folder) is None and not _is_committed_now(layout, folder, (volume, number)):
                yield Problem(
                    where=pinned(volume, number),
                    what="no commit record names it, though its commit came to its end",
                    advice=f"restore {layout.root / 'commits'} from a backup, or retire this version and run the "
                    "stage that wrote it again",
                )


def _is_committed_now(layout: Layout, folder: Path, place: Place) -> bool:
    """Whether a version was committed after the commit records were read."""
    try:
        record = wire.loads(Record, (folder / "RECORD.json").read_bytes())
        commit = read_commit(layout, record.job_id)
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


def _protect(layout: Layout, unprotected: Mapping[str, Mapping[Place, str]]) -> None:
    for job_id, digests in unprotected.items():
        commit = read_commit(layout, job_id)
        if commit is not None:
            write_commit(layout, job_id, replace(commit, records={**commit.records, **digests}))


def _unprotected(layout: Layout, unprotected: Mapping[str, Mapping[Place, str]]) -> Iterator[Problem]:
    count = sum(map(len, unprotected.values()))
    if count:
        yield Problem(
            where=str(layout.root / "commits"),
            what=f"the records of {count} version{'s' * (count != 1)} are unprotected: an earlier muster committed "
            "them without a digest",
            advice="`muster volumes fsck --protect` writes the digests of the records as they are now",
            harmless=True,
        )


def _leftovers(layout: Layout, ended: EndedJobs) -> Iterator[Problem]:
    for folder, job_id in uncommitted(layout):
        yield Problem(
            where=str(folder),
            what=f"the commit of job {job_id} was interrupted; this version is not visible",
            advice="submit the job again to complete it; gc deletes it once the job has ended",
            harmless=True,
        )
    try:
        left = list(ended.leftovers(but=ended.resumable()))
    except Corrupt as error:
        advice = "mend it first: gc takes nothing meanwhile"
        yield Problem(where=str(layout.root / "jobs"), what=str(error), advice=advice)
        return
    for job_id in left:
        staging = layout.staging(job_id)
        if any(size_of(path) for path in staging.glob("*/*") if path.name != "sealed"):
            what = f"files that job {job_id} staged and that will not be committed"
            known = layout.job(job_id).is_dir()
            advice = (
                f"`muster jobs gc {job_id} --yes` deletes them"
                if known
                else "gc deletes them with its next run"
            )
            yield Problem(where=str(staging), what=what, advice=advice, harmless=True)
