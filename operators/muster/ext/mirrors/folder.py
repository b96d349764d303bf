"""A folder store as a home of versions: what a mirror reads from, and writes to.

::

    STORE/MIRROR.json    {"format": 1, "of": "<uuid>"}: this is a mirror of that store, and no job commits here

A version arrives in a draft (:mod:`muster.ext.mirrors.drafts`) and becomes visible as by any commit
(:mod:`muster.ext.mirrors.publishing`).
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from muster.core.errors import Conflict, Corrupt, NotFound
from muster.core.holding import closing_handle
from muster.core.names import check_digest
from muster.ext.mirrors.base import (
    Holding,
    Home,
    KeepsCode,
    MirrorBusy,
    Tell,
    VersionDocuments,
    read_at_source,
    refuse_other,
    stretches,
)
from muster.ext.mirrors.drafts import Drafts, Filling, fetch
from muster.ext.mirrors.publishing import Publishing, mark_of
from muster.ext.mirrors.scan import become, become_mirror, held, look, mirrored, owner_of, scan
from muster.volumes import pages, sharing, tombstones, trash
from muster.volumes.commit_records import (
    CommitRecord,
    Place,
    all_commits,
    check_record,
    has_content,
    holder,
    is_committed,
    read_commit,
)
from muster.volumes.durability import (
    locked,
    rename,
    translated,
    write_whole,
)
from muster.volumes.folder import FolderStore
from muster.volumes.fsck import check_data
from muster.volumes.hashing import Frozen, hash_file
from muster.volumes.manifest import Entry
from muster.volumes.marks import pin_name
from muster.volumes.tombstones import Tombstone
from muster.volumes.tree import folders_of, remove, set_modes
from muster.volumes.upkeep import HOUR_SECONDS

_CHUNK_BYTES = 1 << 20


class FolderHome(KeepsCode):
    """The versions of a folder store."""

    def __init__(self, store: FolderStore) -> None:
        super().__init__(store)
        self._store, self._layout = store, store.layout
        self._drafts = Drafts(self._layout.root / "mirror")
        self._publishing = Publishing(store, self._drafts)
        self._commit: tuple[str, CommitRecord | None] = ("", None)
        self._fresh: dict[Place, list[Entry]] = {}
        self._published: list[Place] = []
        self._wrong = set[str]()  # hashes of files that were found wrong: what is linked to them is read, too

    @property
    def where(self) -> str:
        """The store's folder."""
        return str(self._layout.root)

    def owner(self) -> str:
        """Return the uuid of the store that gave the versions their numbers."""
        return owner_of(self._layout.root)

    def holdings(self, volumes: Collection[str] = ()) -> dict[Place, Holding]:
        """Return every committed version."""
        with translated(f"list the versions of {self.where}"):
            return scan(self._layout, volumes)

    def documents(self, place: Place) -> VersionDocuments:
        """Return the documents of a version."""
        try:
            return self._documents(place)
        except (Corrupt, NotFound):
            # Its folder may have been folded, and then its commit record deleted, while it was read.
            if (gone := self._folded(place)) is None:
                raise
            return VersionDocuments(
                place, gone.manifest.encode(), gone.record.encode(), gone.committed, held(gone)
            )

    def _documents(self, place: Place) -> VersionDocuments:
        """Return the documents in a version's folder."""
        folder = self._layout.version(*place)
        try:
            text, said = (folder / "MANIFEST").read_bytes(), (folder / "RECORD.json").read_bytes()
        except FileNotFoundError as error:
            if not has_content(folder):
                raise NotFound(f"{place[0]}@{place[1]} is not in {self.where}") from error
            raise Corrupt(f"{place[0]}@{place[1]} is damaged: {error.filename} is gone") from error
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            raise Corrupt(f"the documents of {place[0]}@{place[1]} cannot be read from their disk") from error
        if (found := look(self._layout, str(folder))) is None:
            raise NotFound(f"{place[0]}@{place[1]} is not in {self.where}")
        documents = VersionDocuments(place, text, said, 0.0, found)
        record = documents.origin
        commit = self._commit_of(record.job_id, place)
        check_record(said, record, place, commit)
        return replace(documents, at=commit.at if commit is not None else 0.0)

    def _folded(self, place: Place) -> Tombstone | None:
        """Return the tombstone of a version that has no folder any more."""
        return None if has_content(self._layout.version(*place)) else tombstones.find(self._layout, *place)

    def _texts(self, place: Place) -> tuple[bytes, bytes]:
        """Return MANIFEST and RECORD.json of a version."""
        folder = self._layout.version(*place)
        try:
            return (folder / "MANIFEST").read_bytes(), (folder / "RECORD.json").read_bytes()
        except FileNotFoundError:
            if (gone := self._folded(place)) is None:
                raise
            return gone.manifest.encode(), gone.record.encode()

    def _commit_of(self, job_id: str, place: Place) -> CommitRecord | None:
        """Return a commit record, cached: one commit may have thousands of versions, which a mirror gets one after the other."""
        of, commit = self._commit
        if of != job_id or commit is None or place not in commit.places:
            commit = read_commit(self._layout, job_id)
            self._commit = (job_id, commit)
        return commit

    def local(self, place: Place) -> Path | None:
        """Return the folder of a version's files."""
        data = self._layout.version(*place) / "data"
        return data if data.is_dir() else None

    def read(
        self,
        documents: VersionDocuments,
        entries: Sequence[Entry],
        *,
        first: int = 0,
        size: int | None = None,
    ) -> Iterator[bytes]:
        """Yield the bytes of these files."""
        data = self._layout.version(*documents.place) / "data"
        for entry, begin, end in stretches(entries, first=first, size=size):
            yield from _bytes_of(f"{data}/{entry.path}", entry, begin, end)

    def code(self, digest: str) -> Path | None:
        """Return the folder of a code snapshot."""
        folder = self._layout.code(check_digest("code snapshot", digest))
        return folder if folder.is_dir() else None

    def own(self, owner: str, *, adopt: bool = False) -> None:
        """Make this the mirror of a store, or with `adopt` that store; refuse one that has versions of its own."""
        root = self._layout.root
        with translated(f"make {root} a mirror"), locked(root / "mirror.lock"):
            if of := mirrored(root):
                self._refuse_other(of, owner, adopt=adopt)
            elif (own := owner_of(root)) != owner:
                if any(scan(self._layout).values()):
                    self._refuse_other(own, owner, adopt=adopt)
                (become if adopt else become_mirror)(root, owner)
            for volume in self._layout.volumes():
                for number in self._layout.taken(volume):
                    if is_committed(self._layout, volume, number):  # a kill before its mark was removed
                        mark_of(self._layout.version(volume, number)).unlink(missing_ok=True)
            if mirrored(root):  # which no gc visits
                before = time.time() - HOUR_SECONDS
                trash.empty(self._layout, before=before)
                commits = {
                    job_id: each
                    for job_id, each in all_commits(self._layout)
                    if isinstance(each, CommitRecord)
                }
                self._store.upkeep.fold(commits, before=before)

    def free(self) -> None:
        """Empty the trash."""
        with translated(f"free the space of what was deleted in {self.where}"):
            trash.empty(self._layout, before=time.time())

    def _refuse_other(self, own: str, owner: str, *, adopt: bool) -> None:
        if adopt:
            advice = (
                "nothing was changed; restore from the mirror of this store, or into one without versions (MUSTER_HOME "
                "names another)"
            )
            refuse_other("the mirror", owner, own, of=self.where, advice=advice)
        refuse_other(self.where, own, owner)

    def receive(
        self, documents: VersionDocuments, source: Home, *, base: VersionDocuments | None, tell: Tell
    ) -> None:
        """Fetch what is missing of a version into its draft."""
        with translated(f"bring {documents.address} to {self.where}"):
            filling = self.begin(documents, base)
            if filling is not None:
                fetch(filling, documents, source, tell)
                self.end(documents, filling)

    def begin(self, documents: VersionDocuments, base: VersionDocuments | None) -> Filling | None:
        """Lock a version's draft and link what the base holds; None where only its documents are to come.

        :raises Busy: another mirror has it, or has just made it visible.
        """
        self._publishing.refuse_other(documents)
        draft = self._drafts.take(documents.place)
        repaired = base is not None and base.place == documents.place
        if not repaired and self._has(documents):  # its folder may have readers: it is not replaced
            self._drafts.release(documents.place)
            raise MirrorBusy(f"{documents.address} was brought to {self.where} by another mirror just now")
        self._take_back(documents, draft)
        draft.mkdir(exist_ok=True)
        if documents.holding.deleted:
            remove(draft / "data")
            self._describe(documents, draft, [])
            return None
        filling = Filling(draft / "data", documents.entries, place=documents.place)
        if base is not None and self._layout.links:
            self._link(filling, base)
        return filling

    def _has(self, documents: VersionDocuments) -> bool:
        """Whether a version is visible here, with its data if the other home has that."""
        now = look(self._layout, str(self._layout.version(*documents.place)))
        if now is None or now.digest != documents.digest or not is_committed(self._layout, *documents.place):
            return False
        return documents.holding.deleted or not now.deleted

    def _take_back(self, documents: VersionDocuments, draft: Path) -> None:
        """Take back to the draft what a kill left in the version's place, invisible."""
        target = self._layout.version(*documents.place)
        mine = holder(target) == documents.origin.job_id
        if mine and has_content(target) and not is_committed(self._layout, *documents.place):
            remove(draft)
            rename(target, draft)

    def _link(self, filling: Filling, base: VersionDocuments) -> None:
        """Link the files that the base has with the same bytes."""
        missing = list(filling.missing.values())
        try:
            # An NFS client may have outdated times of a file.
            repaired = base.place == filling.place  # of a damaged version each file is read
            trusted = self._layout.syncfs and not repaired
            means = "it is brought from the mirror" if repaired else sharing.KEEPS_OWN
            previous = sharing.Previous(self.folder(base.place), missing, trusted=trusted, means=means)
        except (Corrupt, FileNotFoundError):
            return  # fsck reports it; the new version gets bytes of its own
        for entry in missing:
            with suppress(OSError):  # it is gone, or has too many links: it is fetched
                if (same := previous.equal(entry, owner=os.geteuid())) is not None:
                    previous.linked(entry, filling.link(entry, same[0]))

    def folder(self, place: Place) -> Path:
        """Return the folder of a version that is here, visible or complete as a draft."""
        draft = self._drafts.folder(place)
        return draft if (draft / sharing.KNOWN).is_file() else self._layout.version(*place)

    def end(self, documents: VersionDocuments, filling: Filling) -> None:
        """Complete a draft that has all its files."""
        if not filling.whole:
            raise Conflict(
                f"{documents.address} is not whole at {self.where}: {len(filling.missing)} files are missing"
            )
        draft = self._drafts.folder(documents.place)
        self._fresh[documents.place] = filling.fresh
        last = {frozen.inode: frozen.ctime_ns for frozen in filling.frozen.values()}
        self._describe(
            documents,
            draft,
            [replace(frozen, ctime_ns=last[frozen.inode]) for frozen in filling.frozen.values()],
        )
        set_modes(draft / "data", folders_of(draft / "data"), 0o555)

    def _describe(self, documents: VersionDocuments, draft: Path, files: Sequence[Frozen]) -> None:
        """Write what lies beside a version's files."""
        holding = documents.holding
        texts = {
            "MANIFEST": documents.manifest,
            **pages.beside(documents.manifest),
            "RECORD.json": documents.record,
        }
        if holding.deleted:
            texts["TOMBSTONE"] = f'{{"at": {time.time()}, "digest": "{documents.digest}"}}'.encode()
        else:
            texts[sharing.KNOWN] = sharing.render(documents.digest, files).encode()
        for name, text in texts.items():
            write_whole(draft / name, text, durable=False, mode=0o444)
        remove(draft / "pins")  # those of an earlier try may be gone at the source
        (draft / "RETIRED").unlink(missing_ok=True)
        if holding.retired is not None:
            write_whole(draft / "RETIRED", holding.retired, durable=False)
        for reason in holding.pins:
            (draft / "pins").mkdir(exist_ok=True)
            write_whole(draft / "pins" / pin_name(reason), reason, durable=False)

    def publish(self, versions: Sequence[VersionDocuments]) -> None:
        """Make received versions durable and visible."""
        if versions:
            for place in self._published:
                self._fresh.pop(place, None)
            self._published = [documents.place for documents in versions]
            self._publishing.publish(versions)

    def mark(self, place: Place, holding: Holding) -> None:
        """Set the pins of a version, whether it is retired, and whether its data is deleted."""
        address, folder = f"{place[0]}@{place[1]}", self._layout.version(*place)
        if (now := look(self._layout, str(folder))) is None:
            return
        marks = self._store.marks
        if holding.retired is None and now.retired is not None:
            marks.reinstate(address)
        for reason in set(now.pins) - set(holding.pins):
            marks.unpin(address, reason=reason)
        if holding.deleted and not now.deleted:
            with translated(f"delete {address}"), locked(self._layout.root / "gc.lock"):
                if f"volume://{address}" not in self._store.upkeep.leased():  # else a later run does it
                    self._store.upkeep.bury(self._store.catalog.described(*place))
                    if holding.retired is not None:  # after it: on a full disk that makes room
                        write_whole(folder / "RETIRED", holding.retired)
                    return
        if holding.retired is not None and holding.retired != now.retired:
            marks.retire(address, reason=holding.retired)
        for reason in set(holding.pins) - set(now.pins):
            marks.pin(address, reason=reason)

    def verify(self, documents: VersionDocuments, *, drop: bool = False) -> list[str]:
        """Compare the names and sizes of all files, and read again what was written."""
        folder = self._layout.version(*documents.place)
        with translated(f"read {documents.address} in {self.where} again"):
            manifest, record = self._texts(documents.place)
            pairs = (("MANIFEST", manifest, documents.manifest), ("RECORD.json", record, documents.record))
            wrong = [f"{name} is not as it was sent" for name, there, sent in pairs if there != sent]
            if not documents.holding.deleted:
                found = check_data(folder / "data", documents.entries, documents.address, deep=False)
                wrong += [each.what for each in found] + self._read_again(documents, folder / "data")
            if wrong and drop:
                self.drop(documents.place)
            return wrong

    def _read_again(self, documents: VersionDocuments, data: Path) -> list[str]:
        # What another process received, such as a service before it restarted, is read whole.
        received = self._fresh.get(documents.place, documents.entries.values())
        fresh = {entry.path: entry for entry in received}
        if self._wrong:
            fresh |= {path: each for path, each in documents.entries.items() if each.hash in self._wrong}
        changed = list[str]()
        for path, entry in fresh.items():
            if why := _changed(f"{data}/{path}", entry):
                changed.append(why)
                self._wrong.add(entry.hash)
        self._fresh.pop(documents.place, None)
        return changed

    def drop(self, place: Place) -> None:
        """Have a version count as damaged, so that the next run replaces it."""
        folder = self._layout.version(*place)
        if (folder / "data").is_dir():
            self._layout.discard(folder / "data")
        else:  # its data was deleted
            (folder / "MANIFEST").unlink(missing_ok=True)

    def close(self) -> None:
        """Release the locks of drafts, which stay."""
        self._drafts.close()


def _bytes_of(path: str, entry: Entry, begin: int, end: int) -> Iterator[bytes]:
    with read_at_source(path), open(path, "rb", buffering=0) as file:  # noqa: PTH123 - text
        size = file.seek(0, os.SEEK_END)
        if size != entry.size_bytes:
            raise Corrupt(
                f"{path} has {size} bytes in place of {entry.size_bytes}: run `muster volumes fsck`"
            )
        file.seek(begin)
        while begin < end and (chunk := file.read(min(_CHUNK_BYTES, end - begin))):
            begin += len(chunk)
            yield chunk


def _changed(path: str, entry: Entry) -> str:
    """Return how a file on the disk differs from what was written; empty where it does not, or is gone."""
    try:
        _forget(path)
        return "" if hash_file(path) == entry.hash else f"changed content: {entry.path!r:.200}"
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"cannot be read ({error.strerror}): {entry.path!r:.200}"


def _forget(path: str) -> None:
    """Have the next read of a file come from the disk, not from memory; where it is gone that read says so."""
    with suppress(FileNotFoundError), closing_handle(os.open(path, os.O_RDONLY | os.O_CLOEXEC)) as fd:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
