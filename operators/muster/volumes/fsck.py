"""Checks a store: whether every committed version is unchanged, and what crashes left behind.

:mod:`muster.volumes.damage` finds the damage. A check changes no version, except that it writes missing digests
of records, which an earlier release committed, if asked to. What it found is kept, in short, until the next check.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from muster.core.errors import Corrupt
from muster.core.room import size_of
from muster.volumes.base import Checked, UpkeepKind
from muster.volumes.commit_records import Place, read_commit, uncommitted, write_commit
from muster.volumes.damage import Problem, Progress, look
from muster.volumes.held import leftovers, resumable
from muster.volumes.upkeep import note

if TYPE_CHECKING:
    from muster.volumes.folder import FolderStore

__all__ = ["Problem", "Progress", "Report", "check", "summary"]

MOST_DAMAGE = 50
"""Problems that are kept of a check, for a later look; the check itself returns all."""


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


def check(
    store: FolderStore, *, deep: bool = False, protect: bool = False, progress: Progress | None = None
) -> Report:
    """Check every committed version, and look for what crashes left behind.

    :param deep: hash every file again.
    :param protect: write the digests of records that lack one and have no problem.
    :param progress: called with an address, the number of checked versions and of all.
    """
    found = look(store, deep=deep, progress=progress)
    if protect:
        _protect(store, found.unprotected)
    else:
        found.problems += _unprotected(store, found.unprotected)
    found.problems += _leftovers(store)
    report = Report(
        versions=len(found.commits),
        files=found.files,
        size_bytes=found.size_bytes,
        problems=tuple(found.problems),
    )
    note(store.layout, UpkeepKind.FSCK_DEEP if deep else UpkeepKind.FSCK, checked=summary(report))
    return report


def summary(report: Report) -> Checked:
    """Return what is kept of a check."""
    damage = [problem for problem in report.problems if not problem.harmless]
    return Checked(
        versions=report.versions,
        files=report.files,
        size_bytes=report.size_bytes,
        damaged=len(damage),
        damage=tuple(f"{each.where}: {each.what}. {each.advice}" for each in damage[:MOST_DAMAGE]),
        harmless=len(report.problems) - len(damage),
    )


def _protect(store: FolderStore, unprotected: Mapping[str, Mapping[Place, str]]) -> None:
    for job_id, digests in unprotected.items():
        commit = read_commit(store.layout, job_id)
        if commit is not None:
            write_commit(store.layout, job_id, replace(commit, records={**commit.records, **digests}))


def _unprotected(store: FolderStore, unprotected: Mapping[str, Mapping[Place, str]]) -> Iterator[Problem]:
    count = sum(map(len, unprotected.values()))
    if count:
        yield Problem(
            where=str(store.layout.root / "commits"),
            what=f"the records of {count} version{'s' * (count != 1)} are unprotected: an earlier muster committed "
            "them without a digest",
            advice="`muster volumes fsck --protect` writes the digests of the records as they are now",
            harmless=True,
        )


def _leftovers(store: FolderStore) -> Iterator[Problem]:
    for folder, job_id in uncommitted(store.layout):
        yield Problem(
            where=str(folder),
            what=f"the commit of job {job_id} was interrupted; this version is not visible",
            advice="submit the job again to complete it; gc deletes it once the job has ended",
            harmless=True,
        )
    try:
        left = list(leftovers(store, but=resumable(store)))
    except Corrupt as error:
        advice = "mend it first: gc takes nothing meanwhile"
        yield Problem(where=str(store.layout.root / "jobs"), what=str(error), advice=advice)
        return
    for job_id in left:
        staging = store.layout.staging(job_id)
        if any(size_of(path) for path in staging.glob("*/*") if path.name != "sealed"):
            what = f"files that job {job_id} staged and that will not be committed"
            known = store.layout.job(job_id).is_dir()
            advice = (
                f"`muster jobs gc {job_id} --yes` deletes them"
                if known
                else "gc deletes them with its next run"
            )
            yield Problem(where=str(staging), what=what, advice=advice, harmless=True)
