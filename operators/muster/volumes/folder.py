"""The store in a folder: on one machine, and on the claim that a cluster's store service holds.

:mod:`muster.volumes.layout` describes the files. Any number of processes may open it at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from muster.core.address import Address
from muster.core.errors import NotFound
from muster.core.names import check_digest, check_new_partition, check_partition, check_request, check_volume
from muster.core.replica import PartManifest
from muster.core.room import Room
from muster.volumes import damage, fsck, held, listing, retention, snapshot, upkeep
from muster.volumes.attempts import FolderAttempts
from muster.volumes.base import (
    Held,
    Record,
    Saved,
    Staging,
    UpkeepKind,
    UpkeepNote,
    Version,
)
from muster.volumes.catalog import Catalog
from muster.volumes.commits import Commits
from muster.volumes.durability import translated
from muster.volumes.gather import draft_copy
from muster.volumes.layout import open_layout
from muster.volumes.ledger import FolderLedger
from muster.volumes.makings import FolderMakings
from muster.volumes.marks import Marks
from muster.volumes.searches import FolderSearches

P = ParamSpec("P")
T = TypeVar("T")
Part = TypeVar("Part")


def _of(
    part: Callable[[FolderStore], Part], method: Callable[Concatenate[Part, P], T]
) -> Callable[Concatenate[FolderStore, P], T]:
    """Make a method of a part of the store one of the store."""

    def call(self: FolderStore, /, *arguments: P.args, **named: P.kwargs) -> T:
        return method(part(self), *arguments, **named)

    call.__name__, call.__doc__ = method.__name__, method.__doc__
    return call


def _sound(store: FolderStore) -> FolderStore:
    """Return the store. :raises Corrupt: fsck would find damage in versions that are not retired."""
    damage.refuse(store)
    return store


class FolderStore:
    """Volumes, code snapshots and the job ledger below `root`, which is created if it is not there.

    :param compare: whether a commit reads each file that it shares with the version before, though the file
        seems unchanged: this finds bits that flipped on the disk.
    :raises StoreError: `root` is something else, cannot be created, or belongs to a newer muster.
    """

    def __init__(self, root: Path, *, compare: bool = False) -> None:
        self.layout = open_layout(Path(root))
        self.catalog = Catalog(self.layout)
        self._ledger = FolderLedger(self.layout)
        self.attempts = FolderAttempts(self.layout, self._ledger)
        self.commits = Commits(self.layout, self.catalog, self._ledger, self.attempts, compare=compare)
        self.marks = Marks(self.layout, self.catalog)
        self.makings = FolderMakings(self.layout, self.catalog, self.marks)
        self.searching = FolderSearches(self.layout)

    resolve = _of(lambda store: store.catalog, Catalog.resolve)
    made = _of(lambda store: store.makings, FolderMakings.made)
    use = _of(lambda store: store.makings, FolderMakings.use)
    forget = _of(lambda store: store.makings, FolderMakings.forget)
    claim = _of(lambda store: store.makings, FolderMakings.claim)
    begin_search = _of(lambda store: store.searching, FolderSearches.begin_search)
    search = _of(lambda store: store.searching, FolderSearches.search)
    searches = _of(lambda store: store.searching, FolderSearches.searches)
    search_events = _of(lambda store: store.searching, FolderSearches.search_events)
    tell_search = _of(lambda store: store.searching, FolderSearches.tell_search)
    pin = _of(lambda store: store.marks, Marks.pin)
    unpin = _of(lambda store: store.marks, Marks.unpin)
    lease = _of(lambda store: store.marks, Marks.lease)
    release = _of(lambda store: store.marks, Marks.release)
    retire = _of(lambda store: store.marks, Marks.retire)
    reinstate = _of(lambda store: store.marks, Marks.reinstate)
    check = _of(lambda store: store, fsck.check)
    plan = _of(_sound, retention.plan)
    collect = _of(lambda store: store, retention.collect)

    @property
    def ledger(self) -> FolderLedger:
        """The job ledger of this store."""
        return self._ledger

    def volumes(self) -> list[str]:
        """Every volume's name, sorted."""
        return sorted(name for name in self.layout.volumes() if self.catalog.holds(name))

    def versions(self, volume: str) -> list[Version]:
        """Every version of a volume that can be read, oldest first."""
        return self.catalog.live(check_volume(volume))

    def newest(
        self, volume: str, *, limit: int, before: int | None = None, partition: str | None = None
    ) -> list[Version]:
        """The newest versions of a volume, newest first; no others are read."""
        return self.catalog.newest(check_volume(volume), limit=limit, before=before, partition=partition)

    def last(self, volume: str, partition: str | None = None) -> int:
        """The highest number of a volume's partition, retired, damaged and deleted ones included."""
        return self.catalog.last(check_volume(volume), partition)

    def count(self, volume: str) -> int:
        """How many versions of a volume can be read."""
        return self.catalog.count(check_volume(volume))

    def record(self, address: str) -> Record:
        """Return one version's record; also after gc deleted its data."""
        wanted = Address.parse(address)
        if wanted.value.isdigit():
            return self.catalog.record(wanted.volume, int(wanted.value))
        version = self.marks.one(address)
        return self.catalog.record(version.volume, version.number)

    def records(self, addresses: Sequence[str]) -> list[Record]:
        """Return the record of each address, in their order."""
        return [self.record(address) for address in addresses]

    def path(self, address: str) -> Path:
        """Return the folder of one version's data, or the file that the address names in it."""
        inner = Address.parse(address).path
        version = self.marks.one(address)
        data = self.layout.version(version.volume, version.number) / "data"
        if inner and not (data / inner).exists():
            there = ", ".join(sorted(os.listdir(data))[:8])  # noqa: PTH208 - names are all that is wanted
            raise NotFound(f"{version.address} holds no {inner!r:.120}; at its top are {there}")
        return data / inner if inner else data

    def manifest(self, address: str) -> listing.Listing:
        """Return every file of one version by its path, in that order, with hash and size; also after gc."""
        record = FolderStore.record(self, address)  # its own: a subclass may have one of its mirror
        return listing.open_manifest(self.layout.version(record.volume, record.number) / "MANIFEST")

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

    def used(self, address: str) -> float:
        """Return when a run last used a version again that was made before; 0.0: none did."""
        return self.makings.used(self.marks.one(address))

    def stage(self, job_id: str, *, replicas: int | None = None) -> Staging:
        """Begin a new attempt; every earlier one is fenced.

        :param replicas: of an elastic gang; without it, those of the attempt before.
        """
        self.ledger.check(job_id)
        with translated(f"stage job {job_id}"), self.attempts.alone(job_id):
            return self.attempts.begin(job_id, replicas=replicas)

    def note_gone(self, job_id: str, *, attempt: int) -> None:
        """Note that no process of an attempt is left."""
        self.ledger.check(job_id)
        with translated(f"note the end of attempt {attempt} of job {job_id}"), self.attempts.alone(job_id):
            self.attempts.note_gone(job_id, attempt)

    def staging(self, job_id: str) -> Staging | None:
        """Return the current attempt's staging, or None before the first."""
        return self.attempts.latest(job_id)

    def saved(self, job_id: str) -> Saved | None:
        """Return the checkpoints of a job, or of a job that it follows."""
        self.ledger.check(job_id)
        with translated(f"look at the checkpoints of job {job_id}"):
            return self.attempts.saved(job_id)

    def sealed(self, job_id: str) -> tuple[PartManifest, ...] | None:
        """Return the part-manifests of the current attempt if all replicas have sealed, else None."""
        staging = self.attempts.latest(job_id)
        return None if staging is None else self.attempts.sealed(staging)

    def commit(
        self,
        job_id: str,
        *,
        attempt: int,
        metrics: Mapping[str, float] | None = None,
        modules: Sequence[str] | None = None,
    ) -> dict[str, tuple[Version, ...]]:
        """Make the sealed files of all replicas into versions: every output or none, once per job_id."""
        return self.commits.commit(job_id, attempt=attempt, metrics=metrics, modules=modules)

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
                    lambda ready: held.take_in(
                        self,
                        draft_copy(ready, Path(source), volume=volume, partition=partition),
                        checkpoints or {},
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

    def room(self) -> Room:
        """Return the free space of the store's disk."""
        with translated(f"look at the disk of {self.layout.root}"):
            return Room.of(self.layout.root)

    def upkept(self) -> list[UpkeepNote]:
        """Return when fsck, gc and a sweep last ended well."""
        with translated("look at the notes of upkeep"):
            return upkeep.notes(self.layout)

    def note_sweep(self) -> None:
        """Note that jobs without a task were just looked for."""
        upkeep.note(self.layout, UpkeepKind.SWEEP)

    def held(self) -> tuple[Held, ...]:
        """Return the disk space that ended jobs still use, oldest first."""
        return held.held(self)

    def let_go(self, job_ids: Collection[str]) -> int:
        """Delete all staged files of these ended jobs; return their size in bytes."""
        with translated("give back what ended jobs hold"):
            return held.let_go(self, job_ids)

    def salvage(self, job_id: str, target: Path) -> int:
        """Copy an ended job's uncommitted outputs below `target`."""
        with translated(f"fetch what job {job_id} staged into {target}"):
            return held.salvage(self, job_id, target)

    def follow(self, job_id: str, target: Path, *, begins: str) -> int:
        """Copy what a job has written so far below `target`."""
        with translated(f"follow what job {job_id} writes into {target}"):
            return held.follow(self, job_id, target, begins=begins)

    def close(self) -> None:
        """Do nothing: a folder store holds nothing open."""
