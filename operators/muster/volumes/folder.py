"""The store in a folder: on one machine, and on the claim that a cluster's store service holds.

:mod:`muster.volumes.layout` describes the files. Any number of processes may open it at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from muster.core.errors import NotFound
from muster.core.names import check_digest, check_new_partition, check_partition, check_request, check_volume
from muster.core.replica import PartManifest
from muster.volumes import snapshot
from muster.volumes.attempts import FolderAttempts
from muster.volumes.base import Version
from muster.volumes.catalog import Catalog
from muster.volumes.commits import Commits
from muster.volumes.durability import translated
from muster.volumes.event_logs import FolderEventLogs
from muster.volumes.gather import draft_copy
from muster.volumes.held import EndedJobs
from muster.volumes.layout import open_layout
from muster.volumes.ledger import FolderLedger
from muster.volumes.makings import FolderMakings
from muster.volumes.marks import Marks
from muster.volumes.protocols import Upkeep
from muster.volumes.upkeep import FolderUpkeep

P = ParamSpec("P")
T = TypeVar("T")
Part = TypeVar("Part")


def _of(
    part: Callable[[FolderStore], Part], method: Callable[Concatenate[Part, P], T]
) -> Callable[Concatenate[FolderStore, P], T]:
    """Make a method of a part of the store, or of the protocol that the part follows, one of the store."""
    name = method.__name__

    def call(self: FolderStore, /, *arguments: P.args, **named: P.kwargs) -> T:
        returned: T = getattr(part(self), name)(*arguments, **named)
        return returned

    call.__name__, call.__doc__ = name, method.__doc__
    return call


class FolderStore:
    """Volumes, code snapshots and the job ledger below `root`, which is created if it is not there.

    :param compare: whether a commit reads each file that it shares with the version before, though the file
        seems unchanged: this finds bits that flipped on the disk.
    :raises StoreError: `root` is something else, cannot be created, or belongs to a newer muster.
    """

    def __init__(self, root: Path, *, compare: bool = False) -> None:
        self.layout = layout = open_layout(Path(root))
        self.catalog = Catalog(layout)
        self.marks = Marks(layout, self.catalog)
        self._ledger = FolderLedger(layout)
        self.attempts = FolderAttempts(layout, self._ledger)
        self.commits = Commits(layout, self.catalog, self._ledger, self.attempts, compare=compare)
        self.ended = EndedJobs(layout, self._ledger, self.attempts)
        self.makings = FolderMakings(layout, self.catalog, self.marks)
        self.event_logs = FolderEventLogs(layout)
        self.upkeep = FolderUpkeep(
            layout, self.catalog, self.marks, self.attempts, self.ended, self.event_logs
        )

    resolve = _of(lambda store: store.catalog, Catalog.resolve)
    volumes = _of(lambda store: store.catalog, Catalog.volumes)
    versions = _of(lambda store: store.catalog, Catalog.versions)
    newest = _of(lambda store: store.catalog, Catalog.newest)
    last = _of(lambda store: store.catalog, Catalog.last)
    count = _of(lambda store: store.catalog, Catalog.count)
    record = _of(lambda store: store.catalog, Catalog.record)
    records = _of(lambda store: store.catalog, Catalog.records)
    manifest = _of(lambda store: store.catalog, Catalog.manifest)
    path = _of(lambda store: store.catalog, Catalog.path)
    pin = _of(lambda store: store.marks, Marks.pin)
    unpin = _of(lambda store: store.marks, Marks.unpin)
    lease = _of(lambda store: store.marks, Marks.lease)
    release = _of(lambda store: store.marks, Marks.release)
    retire = _of(lambda store: store.marks, Marks.retire)
    reinstate = _of(lambda store: store.marks, Marks.reinstate)
    made = _of(lambda store: store.makings, FolderMakings.made)
    use = _of(lambda store: store.makings, FolderMakings.use)
    used = _of(lambda store: store.makings, FolderMakings.used)
    forget = _of(lambda store: store.makings, FolderMakings.forget)
    claim = _of(lambda store: store.makings, FolderMakings.claim)
    stage = _of(lambda store: store.attempts, FolderAttempts.stage)
    staging = _of(lambda store: store.attempts, FolderAttempts.staging)
    note_gone = _of(lambda store: store.attempts, FolderAttempts.note_gone)
    saved = _of(lambda store: store.attempts, FolderAttempts.saved)
    commit = _of(lambda store: store.commits, Commits.commit)
    held = _of(lambda store: store.ended, EndedJobs.held)
    let_go = _of(lambda store: store.ended, EndedJobs.let_go)
    salvage = _of(lambda store: store.ended, EndedJobs.salvage)
    follow = _of(lambda store: store.ended, EndedJobs.follow)
    begin_log = _of(lambda store: store.event_logs, FolderEventLogs.begin_log)
    log_head = _of(lambda store: store.event_logs, FolderEventLogs.log_head)
    logs = _of(lambda store: store.event_logs, FolderEventLogs.logs)
    log_events = _of(lambda store: store.event_logs, FolderEventLogs.log_events)
    append_events = _of(lambda store: store.event_logs, FolderEventLogs.append_events)
    check = _of(lambda store: store.upkeep, Upkeep.check)
    plan = _of(lambda store: store.upkeep, Upkeep.plan)
    collect = _of(lambda store: store.upkeep, Upkeep.collect)
    room = _of(lambda store: store.upkeep, Upkeep.room)
    upkept = _of(lambda store: store.upkeep, Upkeep.upkept)
    note_sweep = _of(lambda store: store.upkeep, Upkeep.note_sweep)

    @property
    def ledger(self) -> FolderLedger:
        """The job ledger of this store."""
        return self._ledger

    def put(self, root: Path, files: Sequence[str], *, texts: Mapping[str, str] | None = None) -> str:
        """Keep `files`, and `texts` in place of some or beside them, as a code snapshot; the same bytes once."""
        with translated("keep the code snapshot"):
            return snapshot.keep(self.layout, root, files, texts=texts)

    def holds(self, digest: str) -> bool:
        """Whether a code snapshot, or an image's lock, is in the store."""
        return self.layout.code(check_digest("code snapshot", digest)).is_dir()

    def code(self, digest: str) -> Path:
        """Return the folder of a code snapshot, unpacked and read-only."""
        folder = self.layout.code(check_digest("code snapshot", digest))
        if not folder.is_dir():
            raise NotFound(f"no code snapshot {digest}: it was deleted by gc, or put into another store")
        return folder

    def sealed(self, job_id: str) -> tuple[PartManifest, ...] | None:
        """Return the part-manifests of the current attempt if all replicas have sealed, else None."""
        staging = self.attempts.staging(job_id)
        return None if staging is None else self.attempts.sealed(staging)

    def add(
        self,
        volume: str,
        source: Path,
        *,
        partition: str | None = None,
        note: str = "",
        request: str | None = None,
        checkpoints: Mapping[str, str] | None = None,
    ) -> Version:
        """Copy a folder or file, and the checkpoints of jobs, into a new version."""
        check_volume(volume)
        if partition is not None:
            check_new_partition(partition)
        job_id = f"put-{check_request(request or os.urandom(8).hex())}"
        with translated(f"put {source} into {volume}"):
            try:
                return self.commits.put(
                    job_id,
                    volume,
                    lambda ready: self.ended.take_in(
                        draft_copy(ready, Path(source), volume=volume, partition=partition), checkpoints or {}
                    ),
                    note=note,
                )
            except BaseException:
                self.layout.delete(self.layout.staging(job_id))
                raise

    def copy(
        self, address: str, volume: str, *, request: str, partition: str | None = None, note: str = ""
    ) -> Version:
        """Make a version with the files and the record of another, once per request."""
        check_volume(volume)
        if partition is not None:
            check_partition(partition)
        source = self.path(address)
        with translated(f"copy {address} to {volume}"):
            return self.commits.put(
                f"copy-{check_request(request)}",
                volume,
                lambda ready: draft_copy(ready, source, volume=volume, partition=partition),
                note=note,
                like=replace(self.record(address), partition=partition),
            )

    def close(self) -> None:
        """Do nothing: a folder store holds nothing open."""
