"""The disk space that ended jobs still use: listing, freeing and fetching it.

A job without success frees its staged files at once; its checkpoints stay. Outputs that all replicas had
sealed but that could not be committed stay too, for :data:`KEPT_DAYS`: they may hold a trained model. So does the
event log of a gang of Spark that failed.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from muster.core.data import CHECKPOINTS
from muster.core.errors import Corrupt, MusterError, NotFound, SpecError, StoreError
from muster.core.job import DAY_SECONDS, EVENTS, JobSpec
from muster.core.kept import follow as follow_links, look, refusal
from muster.core.origin import Origin
from muster.core.room import size_of
from muster.core.status import JobState, JobStatus
from muster.core.verdict import Cause
from muster.volumes import trash
from muster.volumes.attempts import FolderAttempts
from muster.volumes.base import MOST_CHECKPOINTS, Held, Staging
from muster.volumes.durability import rename, translated
from muster.volumes.gather import Draft, check_path
from muster.volumes.handing_over import KEPT, replicas_of
from muster.volumes.layout import Layout
from muster.volumes.ledger import FolderLedger
from muster.volumes.tree import copy_file, copy_tree, held_files_of, lengthen, open_regular, remove, unlock

KEPT_DAYS = 7
CHECKPOINT_DAYS = 7.0
_SEALED = "sealed"
_LOG = logging.getLogger(__name__)


class EndedJobs:
    """The staged files of one store's jobs that have ended, or are given up."""

    def __init__(self, layout: Layout, ledger: FolderLedger, attempts: FolderAttempts) -> None:
        self._layout, self._ledger, self._attempts = layout, ledger, attempts

    def give_back(self, job_id: str, *, cause: Cause | None) -> None:
        """Delete the staged files of a job without success, but for its checkpoints.

        Outputs that all replicas had sealed, and an event log, stay too, unless it ended because the disk is full.
        Nothing of the job may still run: its further writes would be lost.

        :param cause: why it ended, where it is known.
        """
        staging = self._attempts.staging(job_id)
        if staging is None or not staging.root.is_dir():
            return
        if cause is not Cause.DISK_FULL and self._whole(staging):
            return
        stay = [] if cause is Cause.DISK_FULL else self._event_logs(staging)
        for entry in sorted(
            staging.root.iterdir(), key=lambda entry: entry.name != _SEALED
        ):  # the seals first
            if any(log.parent == entry for log in stay):
                for output in entry.iterdir():
                    if output not in stay:
                        self._layout.delete(output)
            elif entry.name not in KEPT:
                self._layout.delete(entry)

    def _event_logs(self, staging: Staging) -> list[Path]:
        folders = [folder / EVENTS for folder in self._replicas(staging)]
        return [folder for folder in folders if folder.is_dir() and any(folder.iterdir())]

    def _whole(self, staging: Staging) -> bool:
        """Whether all replicas have sealed; an unreadable seal does not count."""
        with suppress(StoreError):
            return self._attempts.sealed(staging) is not None
        return False

    def is_fetchable(self, status: JobStatus) -> bool:
        """Whether a job failed recently enough that outputs are kept: all replicas had sealed, or it left an event log."""
        if status.state is not JobState.FAILED or (status.ended or 0) < time.time() - KEPT_DAYS * DAY_SECONDS:
            return False
        staging = self._attempts.staging(status.job_id)
        return staging is not None and (self._whole(staging) or bool(self._event_logs(staging)))

    def held(self) -> tuple[Held, ...]:
        """Return the disk space that ended jobs use, oldest first."""
        return tuple(found for job_id in self._staged() if (found := self._held(job_id)) is not None)

    def let_go(self, job_ids: Iterable[str]) -> int:
        """Delete all staged files of these ended jobs, and return their size in bytes.

        :raises SpecError: one of them has not ended. :raises NotFound: there is no such job.
        """
        chosen, freed = list(job_ids), 0
        with translated("give back what ended jobs hold"):
            for job_id in chosen:
                self._check_ended(job_id)
            for job_id in chosen:
                # where folders cannot be moved into the trash, deleting them does not return their size
                folder = self._layout.staging(job_id)
                size_bytes = size_of(_listable(folder))
                freed += max(size_bytes, trash.delete(self._layout, folder))
        return freed

    def take_in(self, draft: Draft, checkpoints: Mapping[str, str]) -> Draft:
        """Copy the checkpoints of ended jobs into a draft, sharing blocks where the file system can; they stay where they are.

        :param checkpoints: the job of each folder of the draft.
        :raises SpecError: a job has not ended, a folder is no plain path or is there already. :raises NotFound: no such job.
        """
        if len(checkpoints) > MOST_CHECKPOINTS:
            raise SpecError(
                f"checkpoints of {len(checkpoints)} jobs: a version takes in those of {MOST_CHECKPOINTS} at most"
            )
        files = dict(draft.files)
        for folder, job_id in checkpoints.items():
            check_path(folder, output=draft.volume)
            if any(path == folder or path.startswith(f"{folder}/") for path in files):
                raise SpecError(
                    f"{folder!r:.120} is to hold the checkpoints of job {job_id}, and is there already"
                )
            self._check_ended(job_id)
            staging = self._attempts.left(job_id)
            if staging is None:
                continue
            with self._attempts.alone(staging.job_id):  # gc leaves it alone meanwhile
                files |= _taken_in(_listable(staging.checkpoints), draft.folder, folder, of=job_id)
        return replace(draft, files=files)

    def fetchable(self, job_id: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
        """Yield every regular file that an ended job staged, as ``REPLICA/OUTPUT/PATH``; no link is followed.

        The path of an entry is valid until the next one is requested.

        :raises NotFound: there is none.
        """
        self._check_ended(job_id)
        staging, found = self._attempts.staging(job_id), False
        for folder in self._folders(staging) if staging else ():
            for path, entry in held_files_of(folder):
                if entry.is_file(follow_symlinks=False):
                    found = True
                    yield f"{folder.name}/{path}", entry
        if not found:
            raise NotFound(
                f"job {job_id} holds no output any more: what a job without success staged is given back at once, "
                f"and what could not be committed is kept for {KEPT_DAYS} days"
            )

    def written(self, job_id: str, *, begins: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
        """Yield the regular files of a job's current attempt whose names begin with `begins`, as :func:`fetchable` does."""
        staging = self._attempts.staging(job_id)
        for folder in self._replicas(staging) if staging else ():
            for path, entry in held_files_of(folder):
                if entry.name.startswith(begins) and entry.is_file(follow_symlinks=False):
                    yield f"{folder.name}/{path}", entry

    def follow(self, job_id: str, target: Path, *, begins: str) -> int:
        """Copy what of these files is not there yet below `target`; return the number of files."""
        count = 0
        with translated(f"follow what job {job_id} writes into {target}"):
            for path, entry in self.written(job_id, begins=begins):
                with os.fdopen(open_regular(entry.path), "rb") as file:
                    lengthen(target / path, file)
                count += 1
        return count

    def salvage(self, job_id: str, target: Path) -> int:
        """Copy an ended job's staged files below `target`, one folder per replica; return their number."""
        count = 0
        with translated(f"fetch what job {job_id} staged into {target}"):
            for path, entry in self.fetchable(job_id):
                (target / path).parent.mkdir(parents=True, exist_ok=True)
                copy_file(entry.path, str(target / path))
                count += 1
        return count

    def _held(self, job_id: str) -> Held | None:
        try:
            status = self._ledger.status(job_id)
            staging = self._attempts.staging(job_id)
        except MusterError:  # gc deals with jobs that no ledger knows
            return None
        if staging is None or not status.state.ended or not self._attempts.idle(job_id):
            return None
        checkpoints = size_of(_listable(staging.checkpoints))
        outputs = sum(map(size_of, self._folders(staging)))
        if not (checkpoints or outputs):
            return None
        return Held(
            job_id=job_id,
            ended=status.ended or status.submitted,
            outputs_bytes=outputs,
            checkpoints_bytes=checkpoints,
        )

    def _staged(self) -> list[str]:
        known = set(os.listdir(self._layout.root / "staging"))  # noqa: PTH208 - names are all that is wanted
        return [job_id for job_id in self._ledger.jobs() if job_id in known]

    def _folders(self, staging: Staging) -> list[Path]:
        """The folders that replicas wrote, and those into which a commit began to gather the files."""
        ready = staging.root / "ready"
        return [
            _listable(folder) for folder in (*self._replicas(staging), *([ready] if ready.is_dir() else ()))
        ]

    def _replicas(self, staging: Staging) -> list[Path]:
        names = replicas_of(self._ledger.spec(staging.job_id))
        return [folder for name in names if (folder := staging.root / name).is_dir()]

    def _check_ended(self, job_id: str) -> None:
        state = self._ledger.status(job_id).state
        if not state.ended or not self._attempts.idle(job_id):
            raise SpecError(
                f"job {job_id} is {state.value}: wait for its end, or end it with `muster jobs cancel`"
            )

    def leftovers(self, *, but: Collection[str]) -> Iterator[str]:
        """Yield the job ids whose staging is not needed any more.

        :param but: jobs whose checkpoints are kept, as :func:`resumable` returns them.
        """
        for folder in named(self._layout.root / "staging"):
            if folder.name in but or self.is_left_fetchable(folder.name):
                continue
            if self.given_up(folder.name):
                yield folder.name

    def resumable(self, *, days: float = CHECKPOINT_DAYS) -> tuple[str, ...]:
        """Return the ended jobs whose checkpoints stay, sorted.

        These are jobs of a task that ended less than `days` ago and has not succeeded since, jobs with checkpoints that a job that
        has not ended yet will copy at its start, and trials that ended, whose search may take them into its results.
        """
        since, ledger = time.time() - days * DAY_SECONDS, self._ledger
        folders = [folder.name for folder in named(self._layout.root / "staging")]
        left = [job_id for job_id in folders if self.has_ended(job_id) and self._saved_by(job_id)]
        saved = {job_id: _task(spec) for job_id, spec in ledger.specs(left).items()}
        kept, needed = set[str](), set[str]()
        for status in ledger.statuses(ledger.jobs() if saved else ()):  # oldest first
            job_id, ended = status.job_id, status.ended or status.submitted
            if not status.state.ended:
                followed = self._attempts.last_saved(ledger.spec(job_id).follows)
                needed |= {followed.job_id} if followed is not None else set()
            elif job_id in saved and saved[job_id][0].dag_id and ended >= since:
                kept.add(job_id)
            elif status.state is JobState.SUCCEEDED and kept:
                task = _task(ledger.spec(job_id))
                kept -= {each for each in kept if saved[each] == task}
        return tuple(sorted(kept | needed))

    def _saved_by(self, job_id: str) -> bool:
        try:
            staging = self._attempts.left(job_id)
        except Corrupt:  # its spec is unknown, so nothing continues from it
            return False
        return staging is not None and staging.job_id == job_id

    def is_left_fetchable(self, job_id: str) -> bool:
        """Whether a job's staged outputs can still be fetched; False if the ledger does not know the job."""
        try:
            return self.is_fetchable(self._ledger.status(job_id))
        except NotFound:
            return False

    def given_up(self, job_id: str) -> bool:
        """Whether a job cannot be committed any more: it ended, or the ledger lacks it and its lock is free."""
        known = self._layout.job(job_id).is_dir()
        return (self.has_ended(job_id) or not known) and self._attempts.idle(job_id)

    def has_ended(self, job_id: str) -> bool:
        """Whether a job of the ledger has ended."""
        try:
            return self._ledger.status(job_id).state.ended
        except NotFound:
            return False


def named(folder: Path) -> list[Path]:
    """Return the entries of `folder`, sorted, without temporary names."""
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def _taken_in(checkpoints: Path, data: Path, folder: str, *, of: str) -> dict[str, int]:
    """Copy a folder of checkpoints, and return the sizes of the files by path; what no version keeps is left out and logged."""
    target = data / folder
    copy_tree(checkpoints, target)
    odd = sorted(look(str(checkpoints)))
    while odd or (odd := follow_links(str(target), rename=rename)):
        said = refusal(f"the folder of checkpoints of job {of}", odd)
        _LOG.warning("%s; the version that takes them in does not hold that", said)
        for each in odd:
            remove(target / each.path)
        odd = []
    return {
        check_path(f"{folder}/{path}", output=CHECKPOINTS): entry.stat(follow_symlinks=False).st_size
        for path, entry in held_files_of(target)
    }


def _listable(folder: Path) -> Path:
    """Refresh an NFS client's listing of an ended job's folder."""
    with suppress(PermissionError):  # it only refreshes listings on NFS
        unlock(folder)
    return folder


def _task(spec: JobSpec) -> tuple[Origin, str]:
    """Return the task and run of a job, and its name among that task's jobs."""
    return spec.origin, spec.name
