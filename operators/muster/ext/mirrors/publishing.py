"""Makes versions that have arrived in drafts visible in a folder store, as any commit does.

The number is marked, the draft renamed, the commit record written, the mark removed. Many versions share the two
syncs of that. A kill at any point leaves a version invisible or whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from muster.core import wire
from muster.core.errors import Conflict, Corrupt, SpecError
from muster.ext.mirrors.base import Holding, VersionDocuments
from muster.ext.mirrors.drafts import Drafts
from muster.ext.mirrors.scan import mirrored
from muster.volumes import listing, manifest, numbers, pages, sharing
from muster.volumes.base import Record
from muster.volumes.catalog import pins
from muster.volumes.commit import place as place_draft
from muster.volumes.commit_records import (
    CommitRecord,
    Place,
    committed_marks,
    has_content,
    holder,
    is_buried,
    is_committed,
    read_commit,
    retired,
    write_commit,
)
from muster.volumes.durability import (
    locked,
    rename,
    symlink,
    sync_folder,
    translated,
    write_whole,
)
from muster.volumes.folder import FolderStore
from muster.volumes.layout import Layout
from muster.volumes.marks import pin_name


class Publishing:
    """The drafts of a folder store on their way to their places."""

    def __init__(self, store: FolderStore, drafts: Drafts) -> None:
        self._store, self._layout, self._drafts = store, store.layout, drafts

    def refuse_other(self, documents: VersionDocuments) -> None:
        """Refuse to replace another version under the same number, committed or being committed. :raises Conflict: it is there."""
        target = self._layout.version(*documents.place)
        if not has_content(target):
            return
        job_id = holder(target)
        other = f"that of job {job_id}"
        if job_id in (None, documents.origin.job_id):
            other = _other(self._layout, documents)
        if other:
            raise Conflict(
                f"{documents.address} in {self._layout.root} is {other}, not {documents.digest[:19]} of job {documents.origin.job_id}: "
                "two stores have given out this number, or the mirror was changed. It was left as it is; compare the two"
            )

    def publish(self, versions: Sequence[VersionDocuments]) -> None:
        """Make received versions durable and visible.

        :param versions: one or more, each complete in its draft.
        :raises Conflict: a job has reserved or committed the number of one, or a commit names another record of it.
        """
        with translated(f"make {versions[0].address} and others visible in {self._layout.root}"):
            self._layout.sync(*(self._drafts.folder(documents.place) for documents in versions))
            with (
                self._store.marks.steady(),  # gc takes nothing that is in its place and not committed yet
                locked(self._layout.root / "mirror" / ".commits.lock"),
            ):
                commits = self._commits(versions)  # before anything is replaced: they may be of another store
                for documents in versions:
                    self._put_in_place(documents)
                self._commit_all(commits)
            for documents in versions:
                mark_of(self._layout.version(*documents.place)).unlink(missing_ok=True)
                self._drafts.release(documents.place)
                if not documents.holding.deleted and documents.holding.retired is None:
                    numbers.remember(
                        self._layout, documents.place[0], documents.origin.partition, documents.place[1]
                    )

    def _put_in_place(self, documents: VersionDocuments) -> None:
        draft, target = self._drafts.folder(documents.place), self._layout.version(*documents.place)
        target.parent.mkdir(parents=True, exist_ok=True)
        if (target / "MANIFEST").exists() or (
            has_content(target) and is_committed(self._layout, *documents.place)
        ):
            self.refuse_other(documents)  # a job may have committed it since
            self._replace(documents.holding, draft, target)
            return
        try:
            symlink(f"{documents.origin.job_id}:0", mark_of(target))
        except FileExistsError as error:
            raise Conflict(
                f"{documents.address} was reserved by a job in {self._layout.root}: a mirror is written by one store only"
            ) from error
        place_draft(draft, target)
        if not self._layout.syncfs:
            sync_folder(target.parent)

    def _replace(self, holding: Holding, draft: Path, target: Path) -> None:
        """Put a whole version in place of one that was damaged, or whose data gc deleted here."""
        # Before its data: a kill between leaves no version that gc may take.
        self._set_marks(holding, draft, target)
        for name in ("MANIFEST", pages.INDEX, "RECORD.json", sharing.KNOWN):
            if (draft / name).exists():
                rename(draft / name, target / name)
        if (draft / "data").is_dir():
            self._layout.discard(target / "data")
            (draft / "data").chmod(0o755)  # a folder that moves must be writable (rename(2))
            rename(draft / "data", target / "data")
            (target / "data").chmod(0o555)
            (target / "TOMBSTONE").unlink(missing_ok=True)
        elif not (target / "data").is_dir():  # lost here, and since deleted where it comes from
            rename(draft / "TOMBSTONE", target / "TOMBSTONE")
        sync_folder(target)

    def _set_marks(self, holding: Holding, draft: Path, target: Path) -> None:
        """Make the marks of a place durably those of the version that comes to it.

        On a damaged version of a store, which is no mirror, its own marks stay: they may be newer than a mirror's. Only its
        pins come where it has no folder of pins, which may be a part of the damage.
        """
        if (draft / "pins").is_dir() and not (target / "pins").is_dir():
            # In one step: after a kill all are there, or no folder is.
            rename(draft / "pins", target / "pins")
        if is_buried(target) or mirrored(self._layout.root):
            _set_pins(target, holding.pins)
            _set_retired(self._layout, target, holding.retired)
        sync_folder(target)

    def _commits(self, versions: Sequence[VersionDocuments]) -> dict[str, CommitRecord]:
        """Return the records of the versions' commits, with these versions. :raises Conflict: one has another record of a version."""
        by_job: dict[str, list[VersionDocuments]] = {}
        for documents in versions:
            by_job.setdefault(documents.origin.job_id, []).append(documents)
        known = {job_id: self._known_commit(job_id, at=several[0].at) for job_id, several in by_job.items()}
        return {
            job_id: _joined(known[job_id] or CommitRecord({}, {}, several[0].at), several)
            for job_id, several in by_job.items()
        }

    def _known_commit(self, job_id: str, *, at: float) -> CommitRecord | None:
        """Return a job's commit record. One that is damaged is made anew of the records of its versions, unprotected."""
        try:
            return read_commit(self._layout, job_id)
        except Corrupt:
            outputs: dict[str, list[Place]] = {}
            for place in ((name, n) for name in self._layout.volumes() for n in self._layout.numbers(name)):
                folder = self._layout.version(*place)
                with suppress(FileNotFoundError, Corrupt, SpecError):
                    record = wire.loads(Record, (folder / "RECORD.json").read_bytes())
                    if record.job_id == job_id and holder(folder) is None:
                        outputs.setdefault(record.output, []).append(place)
            return CommitRecord(outputs, {}, at)

    def _commit_all(self, commits: Mapping[str, CommitRecord]) -> None:
        for job_id, commit in commits.items():
            write_commit(self._layout, job_id, commit, durable=not self._layout.syncfs)
        self._layout.sync()


def _joined(known: CommitRecord, several: Sequence[VersionDocuments]) -> CommitRecord:
    """Return a commit record with more of its versions."""
    outputs, records = {name: list(places) for name, places in known.outputs.items()}, dict(known.records)
    for documents in several:
        digest = manifest.digest_of(documents.record)
        if records.setdefault(documents.place, digest) != digest:
            raise Conflict(
                f"the commit of job {documents.origin.job_id} names another record of {documents.address}: the two "
                "homes were written by two stores; nothing was changed"
            )
        places = outputs.setdefault(documents.origin.output, [])
        if documents.place not in places:
            places.append(documents.place)
    return replace(known, outputs={name: sorted(places) for name, places in outputs.items()}, records=records)


def _other(layout: Layout, documents: VersionDocuments) -> str:
    """Return which version is there in place of the one that comes; empty where it is the same, or damaged."""
    folder = layout.version(*documents.place)
    with suppress(FileNotFoundError, Corrupt):  # a damaged manifest does not say what the version was
        listing.read(folder / "MANIFEST")
        if (digest := manifest.read_head(folder / "MANIFEST").digest) != documents.digest:
            return digest[:19]
    with suppress(FileNotFoundError, Corrupt, SpecError):  # nor does a damaged record
        text = (folder / "RECORD.json").read_bytes()
        job_id = wire.loads(Record, text).job_id
        commit = read_commit(layout, job_id)
        as_committed = commit is not None and commit.records.get(documents.place) == manifest.digest_of(text)
        if as_committed and text != documents.record:
            return f"the one of another RECORD.json, of job {job_id}"
    return ""


def _set_pins(target: Path, reasons: Sequence[str]) -> None:
    """Make the pins on a place those under these reasons; none that stays is away for a moment."""
    folder, there = target / "pins", pins(target)
    if reasons:
        folder.mkdir(exist_ok=True)
    for reason in sorted(set(reasons) - set(there)):
        write_whole(folder / pin_name(reason), reason)
    for reason in sorted(set(there) - set(reasons)):
        (folder / pin_name(reason)).unlink(missing_ok=True)


def _set_retired(layout: Layout, target: Path, reason: str | None) -> None:
    """Retire or reinstate what is in a place, whose data may be deleted."""
    if reason == retired(layout, target):
        return
    if reason is not None:
        write_whole(target / "RETIRED", reason)
        return
    for mark in (*committed_marks(layout, target), target / "RETIRED"):
        mark.unlink(missing_ok=True)


def mark_of(target: Path) -> Path:
    """Return what stands beside a version's folder until its commit record is written."""
    return target.with_name(f".{target.name}")
