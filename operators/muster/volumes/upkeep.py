"""The upkeep of a folder store: fsck, garbage collection, its disk, and when each was last done.

A deleted version leaves its MANIFEST, its RECORD and a tombstone, which are then folded into files of many
(:mod:`muster.volumes.tombstones`): its number is never given out again, and versions made from it can still be traced. ``STORE/upkeep/<kind>.json`` notes the last fsck, gc and sweep, for metrics and the page.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import Any

from muster.core.errors import Corrupt, NotFound, SpecError, StoreError
from muster.core.extensions import used
from muster.core.job import DAY_SECONDS, JobSpec
from muster.core.room import Room
from muster.core.wire import dumps, loads
from muster.volumes import fsck, makings, tombstones, trash
from muster.volumes.attempts import FolderAttempts
from muster.volumes.base import Checked, Collected, CollectionPlan, Record, UpkeepKind, UpkeepNote, Version
from muster.volumes.catalog import Catalog, pins
from muster.volumes.commit_records import (
    CommitRecord,
    Place,
    check_record,
    committed_marks,
    holder,
    is_buried,
    is_committed,
    read_commit,
    replaced_at,
    retired,
    uncommitted,
)
from muster.volumes.durability import locked, read_whole, sync_folder, translated, write_whole
from muster.volumes.event_logs import FolderEventLogs
from muster.volumes.held import EndedJobs, named
from muster.volumes.layout import Layout
from muster.volumes.listing import parse
from muster.volumes.marks import Marks
from muster.volumes.pages import LARGE_BYTES
from muster.volumes.retention import RetentionRules, why_kept
from muster.volumes.series import keep_series, sweep_series
from muster.volumes.sharing import KNOWN
from muster.volumes.tombstones import Tombstone

HOUR_SECONDS = 3_600.0

_PAUSE_SECONDS = 0.005
_COMMITS = 100  # that are deleted in one turn

_LOG = logging.getLogger(__name__)


class FolderUpkeep:
    """The upkeep of one store."""

    def __init__(
        self,
        layout: Layout,
        catalog: Catalog,
        marks: Marks,
        attempts: FolderAttempts,
        ended: EndedJobs,
        event_logs: FolderEventLogs,
    ) -> None:
        self._layout, self._catalog, self._marks = layout, catalog, marks
        self._ledger, self._attempts, self._ended = attempts.ledger, attempts, ended
        self._event_logs = event_logs

    def check(
        self, *, deep: bool = False, protect: bool = False, progress: fsck.Progress | None = None
    ) -> fsck.Report:
        """See :func:`muster.volumes.fsck.check`; what it finds is noted, in short, until the next check."""
        report = fsck.check(
            self._layout, self._marks, self._ended, deep=deep, protect=protect, progress=progress
        )
        self._note(UpkeepKind.FSCK_DEEP if deep else UpkeepKind.FSCK, checked=fsck.summary(report))
        return report

    def plan(self, **rules: Any) -> CollectionPlan:
        """Return what :meth:`collect` would delete now. :param rules: those of :class:`muster.volumes.retention.RetentionRules`.

        :raises Corrupt: fsck would find damage in versions that are not retired.
        :raises NotFound: one of the volumes does not exist.
        """
        fsck.refuse(self._layout, self._marks)
        return self._plan(RetentionRules(**rules))

    def collect(self, *, now: bool = False, grace_seconds: float = HOUR_SECONDS, **rules: Any) -> Collected:
        """Delete what :meth:`plan` names, and unlink files that have been in the trash for `grace_seconds`.

        A reader without a lease has that long to finish, unless the disk is nearly full: then files are unlinked
        at once, as with `now`. New leases and pins wait while this decides, so none comes too late.

        :raises Corrupt: as :meth:`plan`; nothing is deleted.
        """
        failed: OSError | None = None
        with translated("collect garbage"):
            kept = RetentionRules(**rules)
            commits = fsck.refuse(self._layout, self._marks)
            with locked(self._layout.root / "gc.lock"):
                decided = self._plan(kept)
                scarce, buried = now or Room.of(self._layout.root).scarce, list[Path]()
                try:
                    for version in decided.versions:
                        buried += self.bury(version)
                    for digest in decided.code:
                        self._layout.discard(self._layout.code(digest))
                except OSError as error:  # a full disk: a tombstone needs room, which is made below
                    failed = error
            for folder in decided.torn:
                # a mirror makes versions visible with the lock shared
                with locked(self._layout.root / "gc.lock"):
                    self._empty(Path(folder))
            staged = sum(
                trash.delete(self._layout, self._layout.staging(job_id)) for job_id in decided.staging
            )
            staged += sum(
                trash.delete(self._layout, path)
                for job_id in decided.resumable
                if not self._ended.is_left_fetchable(job_id)
                for path in self._attempts.beside_checkpoints(job_id)
            )
            for reader in named(self._layout.root / "leases"):
                if self._ended.has_ended(reader.name):
                    self._marks.release(reader.name)
            for job_id in decided.jobs:
                keep_series(self._layout, job_id)
                self._layout.discard(self._layout.job(job_id))
            sweep_series(self._layout)
            makings.tidy(self._layout)
            self._event_logs.tidy(days=kept.job_days)
            before = time.time() - (0.0 if now else grace_seconds)
            freed_bytes = staged + (trash.remove_all(self._layout, buried) if scarce else 0)
            freed_bytes += trash.empty(self._layout, before=before)
            if failed is not None:
                raise failed
            if not kept.volumes:
                self.fold(commits, before=before)
            self._collected()
            return Collected(plan=decided, freed_bytes=freed_bytes, at_once=scarce)

    def room(self) -> Room:
        """Return the free space of the store's disk."""
        with translated(f"look at the disk of {self._layout.root}"):
            return Room.of(self._layout.root)

    def upkept(self) -> list[UpkeepNote]:
        """Return the last note of each kind; none of a kind that never ran, or whose note a power cut took.

        :raises Corrupt: a note cannot be read.
        """
        found = []
        for work in UpkeepKind:
            path = self._layout.upkeep / f"{work.value}.json"
            with translated("look at the notes of upkeep"), suppress(FileNotFoundError):
                try:
                    if data := read_whole(path):
                        found.append(loads(UpkeepNote, data))
                except SpecError as error:
                    raise Corrupt(
                        f"{path} cannot be read: {error}; delete it, the next {work.value} writes it anew"
                    ) from error
        return found

    def note_sweep(self) -> None:
        """Note that jobs without a task were just looked for."""
        self._note(UpkeepKind.SWEEP)

    def _collected(self) -> None:
        """Have the extensions delete what is old of theirs, and note that gc ended well."""
        for each in used(lambda each: each.collected):
            each(self._layout.root)
        self._note(UpkeepKind.GC)

    def _note(self, work: UpkeepKind, *, checked: Checked | None = None) -> None:
        """Note that upkeep of one kind has just ended well.

        A disk that takes no note fails no upkeep: it is logged, and the note of the run before stays.
        """
        path = self._layout.upkeep / f"{work.value}.json"
        try:
            path.parent.mkdir(exist_ok=True)
            write_whole(path, dumps(UpkeepNote(work=work, at=time.time(), checked=checked)))
        except OSError as error:
            _LOG.warning("that %s has run cannot be noted in %s: %s", work.value, path, error)

    def _plan(self, rules: RetentionRules) -> CollectionPlan:
        known = self._catalog.volumes()
        for name in rules.volumes:
            if name not in known:
                there = ", ".join(known) or "none yet"
                raise NotFound(
                    f"no volume {name!r:.120}: name a whole volume, without @ and version ({there})"
                )
        damaged = {version.address: version for name in known for version in self._catalog.damaged(name)}
        live = {
            version.address: version for name in known for version in self._catalog.versions(name)
        } | damaged
        awaited, old = self._jobs(time.time() - rules.job_days * DAY_SECONDS)
        kept = why_kept(
            live,
            rules,
            damaged=damaged.keys(),
            used={address: makings.last_used(self._layout, version) for address, version in live.items()},
            replaced=dict(self._replaced(live.values())),
            leased=self.leased(),
            awaited=awaited,
            inputs=self._inputs,
        )
        gone = tuple(version for address, version in live.items() if address not in kept)
        if rules.volumes:
            return CollectionPlan(
                versions=gone, kept={a: why for a, why in kept.items() if live[a].volume in rules.volumes}
            )
        stay = self._ended.resumable(days=rules.checkpoint_days)
        return CollectionPlan(
            versions=gone,
            kept=kept,
            staging=tuple(self._ended.leftovers(but=stay)),
            resumable=stay,
            torn=tuple(
                str(folder) for folder, job_id in uncommitted(self._layout) if self._ended.given_up(job_id)
            ),
            code=tuple(self._unused_code(kept, set(old))),
            jobs=tuple(old),
        )

    def leased(self) -> dict[str, str]:
        """Return every leased address with one holder; leases of ended jobs do not count."""
        found: dict[str, str] = {}
        for reader in named(self._layout.root / "leases"):
            with suppress(FileNotFoundError):  # released meanwhile
                if not self._ended.has_ended(reader.name):
                    found |= {
                        f"volume://{lease.name.replace(':', '/')}": reader.name for lease in reader.iterdir()
                    }
        return found

    def bury(self, version: Version) -> list[Path]:
        """Delete a version's data; return its places in the trash, if any."""
        folder = self._layout.version(version.volume, version.number)
        (folder / KNOWN).unlink(missing_ok=True)  # first: on a full disk it makes room for the tombstone
        write_whole(folder / "TOMBSTONE", json.dumps({"at": time.time(), "digest": version.digest}))
        taken = self._layout.discard(folder / "data")
        sync_folder(folder)
        return [taken] if taken is not None else []

    def fold(self, commits: Mapping[str, CommitRecord], *, before: float) -> None:
        """Put the documents of deleted versions into files of many, and delete the commit records that name no others.

        The highest number of a volume keeps its folder, from which numbers go on; so does a version whose manifest is over 1 MiB, and
        one that is not as it was committed. What finds no room waits for the next time.

        :param commits: by job; they may have changed since. :param before: later ones stay: a call that is repeated has to find them.
        """
        try:
            for volume in sorted(self._layout.volumes()):
                self._fold(volume)
            self._delete_commits(commits, before)
        except (OSError, StoreError) as error:
            _LOG.warning("the documents of deleted versions are not folded: %s", error)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Hold gc.lock for a part of the work; leases, pins and what a mirror makes visible have their turn after it."""
        with locked(self._layout.root / "gc.lock"):
            yield
        time.sleep(_PAUSE_SECONDS)

    def _fold(self, volume: str) -> None:
        numbers = self._layout.numbers(volume)[:-1]
        folded = [number for number in numbers if is_buried(self._layout.version(volume, number))]
        gone = self._tombstones(volume, folded)
        while folded:
            with self._turn():
                folded = tombstones.add(self._layout, volume, gone)
                for number in folded:
                    self._layout.delete(self._layout.version(volume, number))

    def _tombstones(self, volume: str, numbers: Iterable[int]) -> Iterator[Tombstone]:
        read = lru_cache(1)(partial(read_commit, self._layout))  # the versions of one job share it
        for number in numbers:
            folder = self._layout.version(volume, number)
            if is_buried(folder) and holder(folder) is None:
                with suppress(Corrupt, SpecError, OSError):
                    yield self._tombstone(volume, number, read)

    def _tombstone(self, volume: str, number: int, read: Callable[[str], CommitRecord | None]) -> Tombstone:
        """Return what is to be kept of a deleted version. :raises Corrupt: it is large, or not as it was committed."""
        folder, place = self._layout.version(volume, number), (volume, number)
        if (folder / "MANIFEST").stat().st_size > LARGE_BYTES:
            raise Corrupt("its manifest is over 1 MiB")
        text, manifest = (folder / "RECORD.json").read_bytes(), (folder / "MANIFEST").read_bytes()
        record = loads(Record, text)
        commit = read(record.job_id)
        check_record(text, record, place, commit)
        if commit is None or parse(manifest, where=folder).digest != record.digest:
            raise Corrupt("its MANIFEST is not the one that its RECORD.json names")
        return Tombstone(
            number=number,
            deleted=(folder / "TOMBSTONE").stat().st_mtime,
            committed=commit.at,
            record=text.decode(),
            manifest=manifest.decode(),
            retired=retired(self._layout, folder),
            pins=pins(folder),
        )

    def _delete_commits(self, commits: Mapping[str, CommitRecord], before: float) -> None:
        """Delete the commit records of jobs that the ledger does not know, all of whose versions are folded; none that retires a version."""
        found = [job_id for job_id, commit in commits.items() if self._is_over(job_id, commit, before)]
        if not found:
            return
        wanted, folded = {place for job_id in found for place in commits[job_id].places}, set[Place]()
        least = dict(
            sorted(wanted, reverse=True)
        )  # of each volume: what was deleted long ago is not read again
        for name, first in least.items():
            folded |= wanted & {
                (name, n) for n in tombstones.above(self._layout, name, first - 1, lambda _: None)
            }
        places = ((name, n) for name in self._layout.volumes() for n in self._layout.numbers(name))
        retiring = {
            mark.name
            for place in places
            for mark in committed_marks(self._layout, self._layout.version(*place))
        }
        waiting = [job_id for job_id in found if job_id not in retiring]
        for first in range(0, len(waiting), _COMMITS):
            with self._turn():
                for job_id in waiting[first : first + _COMMITS]:
                    with suppress(Corrupt):
                        now = read_commit(self._layout, job_id)  # a mirror may have made more of it visible
                        if now and self._is_over(job_id, now, before) and folded >= set(now.places):
                            self._layout.commit(job_id).unlink(missing_ok=True)

    def _is_over(self, job_id: str, commit: CommitRecord, before: float) -> bool:
        """Whether a job is old, none of its versions has a folder, and the ledger does not know it."""
        return (
            bool(commit.places)
            and commit.at < before
            and not any(self._layout.version(*place).exists() for place in commit.places)
            and not self._layout.job(job_id).is_dir()
        )

    def _replaced(self, live: Iterable[Version]) -> Iterator[tuple[str, float]]:
        """Yield the retired versions that a commit retired, with the time."""
        for version in live:
            if version.retired is not None:
                at = replaced_at(self._layout, self._layout.version(version.volume, version.number))
                if at is not None:
                    yield version.address, at

    def _jobs(self, before: float) -> tuple[dict[str, str], list[str]]:
        """Return the inputs of jobs that have not ended (queued ones lease nothing yet), each with its job; and the jobs that ended before."""
        awaited, old = dict[str, str](), list[str]()
        for job_id in self._ledger.jobs():
            status = self._ledger.status(job_id)
            if not status.state.ended:
                given = self._ledger.spec(job_id).inputs.values()
                awaited |= {pinned.address: job_id for each in given for pinned in each.versions}
            elif (status.ended or status.submitted) < before:
                old.append(job_id)
        return awaited, old

    def _inputs(self, address: str) -> Iterator[str]:
        record = self._record(address)
        for versions in record.inputs.values() if record else ():
            for pinned in versions:
                yield pinned.address

    def _record(self, address: str) -> Record | None:
        """Return a version's record; None where it is damaged and cannot be read."""
        try:
            return self._catalog.record(address)
        except Corrupt:
            return None

    def _unused_code(self, kept: Iterable[str], going: set[str]) -> list[str]:
        """Return snapshots of code and images' locks that no kept version and no job uses; jobs are read, newest first, until all are used."""
        lately = time.time() - DAY_SECONDS  # the job of a fresh one may not be entered yet
        folders = (self._layout.root / "code").iterdir()
        unused = {f"b3:{folder.name}" for folder in folders if folder.stat().st_ctime <= lately}
        records = (record for address in kept if (record := self._record(address)))
        specs = (self._ledger.spec(job_id) for job_id in reversed(self._ledger.jobs()) if job_id not in going)
        users: Iterator[Record | JobSpec] = chain(records, specs)
        while unused and (user := next(users, None)) is not None:
            unused -= {user.code, user.image_digest}
        return sorted(unused)

    def _empty(self, folder: Path) -> None:
        """Delete the files of an abandoned commit; the folder stays, so its number is never reused.

        Do nothing if it was committed meanwhile, or a commit is in progress again.
        """
        job_id = holder(folder)
        if job_id is None or not self._attempts.idle(job_id):
            return
        volume, number = folder.parent.relative_to(self._layout.root / "v").as_posix(), int(folder.name)
        with self._attempts.alone(job_id):
            if holder(folder) == job_id and not is_committed(self._layout, volume, number):
                for entry in folder.iterdir():
                    self._layout.discard(entry)
                self._layout.delete(self._layout.staging(job_id))
