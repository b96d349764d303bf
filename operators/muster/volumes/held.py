"""What ended jobs still hold of the disk, which of it is needed no more, giving it back, and fetching it.

A job that ends without success gives what it staged back at once; its checkpoints stay. What all of its
replicas had sealed and no commit could take stays too, for :data:`KEPT_DAYS`: it may be a training's model.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from muster.core.errors import Corrupt, MusterError, NotFound, SpecError, StoreError
from muster.core.job import JobSpec, Origin
from muster.core.room import size_of
from muster.core.status import JobState, JobStatus
from muster.core.verdict import Cause
from muster.volumes import trash
from muster.volumes.base import Held, Staging
from muster.volumes.tree import copy_file, held_files_of, unlock

if TYPE_CHECKING:
    from muster.volumes.folder import FolderStore

KEPT_DAYS = 7
CHECKPOINT_DAYS = 7.0
DAY_SECONDS = 86_400.0
_CHECKPOINTS, _SEALED = "checkpoints", "sealed"


def give_back(store: FolderStore, job_id: str, *, cause: Cause | None) -> None:
    """Free what a job without success had staged, but for its checkpoints.

    What all of its replicas had sealed stays too, unless it ended because the disk is full.
    Nothing of the job may run any more, or what it still writes is lost.

    :param cause: why it ended, where that is known.
    """
    staging = store.attempts.latest(job_id)
    if staging is None or not staging.root.is_dir():
        return
    if cause is not Cause.DISK_FULL and _whole(store, staging):
        return
    for entry in sorted(staging.root.iterdir(), key=lambda entry: entry.name != _SEALED):  # the seal first
        if entry.name != _CHECKPOINTS:
            store.layout.delete(entry)


def _whole(store: FolderStore, staging: Staging) -> bool:
    """Whether all replicas have sealed; a seal that cannot be read is none."""
    with suppress(StoreError):
        return store.attempts.sealed(staging) is not None
    return False


def is_fetchable(store: FolderStore, status: JobStatus) -> bool:
    """Whether a job failed after all of its replicas had sealed, and so lately that what it wrote is kept."""
    if status.state is not JobState.FAILED or (status.ended or 0) < time.time() - KEPT_DAYS * DAY_SECONDS:
        return False
    staging = store.attempts.latest(status.job_id)
    return staging is not None and _whole(store, staging)


def held(store: FolderStore) -> tuple[Held, ...]:
    """What ended jobs hold, oldest first."""
    return tuple(found for job_id in _staged(store) if (found := _held(store, job_id)) is not None)


def let_go(store: FolderStore, job_ids: Iterable[str]) -> int:
    """Delete all that these ended jobs hold, and return its size in bytes.

    :raises SpecError: one of them has not ended. :raises NotFound: there is no such job.
    """
    chosen = list(job_ids)
    for job_id in chosen:
        _check_ended(store, job_id)
    freed = 0
    for job_id in chosen:
        # where folders cannot be moved into the trash, their deletion does not tell their size
        folder = store.layout.staging(job_id)
        size_bytes = size_of(_listable(folder))
        freed += max(size_bytes, trash.delete(store.layout, folder))
    return freed


def fetchable(store: FolderStore, job_id: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Every regular file that an ended job staged, as ``REPLICA/OUTPUT/PATH``; no link is followed.

    The path of an entry is good until the next one is asked for.

    :raises NotFound: it holds none.
    """
    _check_ended(store, job_id)
    staging, found = store.attempts.latest(job_id), False
    for folder in _folders(store, staging) if staging else ():
        for path, entry in held_files_of(folder):
            if entry.is_file(follow_symlinks=False):
                found = True
                yield f"{folder.name}/{path}", entry
    if not found:
        raise NotFound(
            f"job {job_id} holds no output any more: what a job without success staged is given back at once, "
            f"and what could not be committed is kept for {KEPT_DAYS} days"
        )


def salvage(store: FolderStore, job_id: str, target: Path) -> int:
    """Copy every file that an ended job staged below `target`, a folder for each replica; return how many."""
    count = 0
    for path, entry in fetchable(store, job_id):
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        copy_file(entry.path, str(target / path))
        count += 1
    return count


def _held(store: FolderStore, job_id: str) -> Held | None:
    try:
        status = store.ledger.status(job_id)
        staging = store.attempts.latest(job_id)
    except MusterError:  # gc knows what to do with what no ledger knows
        return None
    if staging is None or not status.state.ended or not store.attempts.idle(job_id):
        return None
    checkpoints = size_of(_listable(staging.checkpoints))
    outputs = sum(map(size_of, _folders(store, staging)))
    if not (checkpoints or outputs):
        return None
    return Held(
        job_id=job_id,
        ended=status.ended or status.submitted,
        outputs_bytes=outputs,
        checkpoints_bytes=checkpoints,
    )


def _staged(store: FolderStore) -> list[str]:
    known = set(os.listdir(store.layout.root / "staging"))  # noqa: PTH208 - names are all that is wanted
    return [job_id for job_id in store.ledger.jobs() if job_id in known]


def _folders(store: FolderStore, staging: Staging) -> list[Path]:
    """Where replicas wrote, and where a commit had begun to gather that."""
    roles = store.ledger.spec(staging.job_id).roles
    names = [f"{role.name}-{index}" for role in roles for index in range(role.replicas)]
    return [_listable(folder) for name in (*names, "ready") if (folder := staging.root / name).is_dir()]


def _listable(folder: Path) -> Path:
    """Let an NFS client learn what other machines wrote below the folder of a job that has ended."""
    with suppress(PermissionError):  # it is for NFS' listings, and no reason not to look
        unlock(folder)
    return folder


def _check_ended(store: FolderStore, job_id: str) -> None:
    state = store.ledger.status(job_id).state
    if not state.ended or not store.attempts.idle(job_id):
        raise SpecError(
            f"job {job_id} is {state.value}: wait for its end, or end it with `muster jobs cancel`"
        )


def leftovers(store: FolderStore, *, but: Collection[str]) -> Iterator[str]:
    """The job ids whose staging is not needed any more.

    :param but: those whose checkpoints are kept, as :func:`resumable` returns them.
    """
    for folder in named(store.layout.root / "staging"):
        if folder.name in but or is_left_fetchable(store, folder.name):
            continue
        if given_up(store, folder.name):
            yield folder.name


def resumable(store: FolderStore, *, days: float = CHECKPOINT_DAYS) -> tuple[str, ...]:
    """The ended jobs whose checkpoints stay, sorted.

    These are the checkpoints of a task that ended less than `days` ago and has not succeeded since, and those
    of which a job that has not ended yet is going to begin with a copy.
    """
    since, ledger = time.time() - days * DAY_SECONDS, store.ledger
    folders = [folder.name for folder in named(store.layout.root / "staging")]
    left = [job_id for job_id in folders if has_ended(store, job_id) and _saved_by(store, job_id)]
    saved = {job_id: _task(spec) for job_id, spec in ledger.specs(left).items()}
    kept, needed = set[str](), set[str]()
    for status in ledger.statuses(ledger.jobs() if saved else ()):  # the oldest first
        job_id, ended = status.job_id, status.ended or status.submitted
        if not status.state.ended:
            followed = store.attempts.last_saved(ledger.spec(job_id).follows)
            needed |= {followed.job_id} if followed is not None else set()
        elif job_id in saved and saved[job_id][0].dag_id and ended >= since:
            kept.add(job_id)
        elif status.state is JobState.SUCCEEDED and kept:
            task = _task(ledger.spec(job_id))
            kept -= {each for each in kept if saved[each] == task}
    return tuple(sorted(kept | needed))


def _task(spec: JobSpec) -> tuple[Origin, str]:
    """The task and run that a job is of, and which of its jobs."""
    return spec.origin, spec.name


def _saved_by(store: FolderStore, job_id: str) -> bool:
    try:
        staging = store.attempts.last_saved(job_id)
    except Corrupt:  # it cannot be told what it was, so nothing goes on from it
        return False
    return staging is not None and staging.job_id == job_id


def is_left_fetchable(store: FolderStore, job_id: str) -> bool:
    """Whether what a job staged can still be fetched; not of one that the ledger does not know."""
    try:
        return is_fetchable(store, store.ledger.status(job_id))
    except NotFound:
        return False


def given_up(store: FolderStore, job_id: str) -> bool:
    """Whether this job will not be committed any more: it ended, or no ledger knows it and its lock is free."""
    known = store.layout.job(job_id).is_dir()
    return (has_ended(store, job_id) or not known) and store.attempts.idle(job_id)


def has_ended(store: FolderStore, job_id: str) -> bool:
    """Whether a job of the ledger has ended."""
    try:
        return store.ledger.status(job_id).state.ended
    except NotFound:
        return False


def named(folder: Path) -> list[Path]:
    """What lies in `folder` under a name of its own, sorted; not what is being made or taken away."""
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
