"""A home of versions: one is read from, and its mirror is written to.

A home is a store in a folder (:mod:`muster.ext.mirrors.folder`), a store service of another cluster
(:mod:`muster.ext.mirrors.service_home`), or an object store or folder in an open layout
(:mod:`muster.ext.mirrors.open_layout`). Each passes ``tests/contract/test_mirrors.py``.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

from muster.core import wire
from muster.core.address import pinned
from muster.core.errors import Conflict, Corrupt, NotFound, SpecError
from muster.volumes import listing
from muster.volumes.base import Record
from muster.volumes.changes import files_below
from muster.volumes.commit_records import Place
from muster.volumes.hashing import hash_file
from muster.volumes.manifest import Entry
from muster.volumes.protocols import Snapshots

_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR, errno.ENXIO})
_UNREADABLE = _GONE | {errno.EIO}

Tell = Callable[[int], None]
"""Is told the bytes that have travelled, as they do."""


class MirrorBusy(Conflict):
    """Another mirror brings this version just now."""


@dataclass(frozen=True, slots=True)
class Holding:
    """One version as a home has it.

    :param digest: that of its manifest; empty where the version is damaged there.
    :param deleted: gc deleted its data; manifest and record are there.
    """

    digest: str
    deleted: bool = False
    retired: str | None = None
    pins: tuple[str, ...] = ()

    @property
    def served(self) -> bool:
        """Whether a deployment has pinned it."""
        return any(reason.startswith("deployment/") for reason in self.pins)


@dataclass(frozen=True)
class VersionDocuments:
    """What a version is beside its files: the bytes of MANIFEST and RECORD.json, and the marks on it.

    :param at: when it was committed, in seconds since the epoch.
    """

    place: Place
    manifest: bytes
    record: bytes
    at: float
    holding: Holding

    @property
    def address(self) -> str:
        """The version's pinned address."""
        return pinned(*self.place)

    @cached_property
    def entries(self) -> listing.Listing:
        """The version's files by path. :raises Corrupt: the manifest is damaged."""
        return listing.parse(self.manifest, where=f"the manifest of {self.address}")

    @cached_property
    def origin(self) -> Record:
        """The version's record. :raises Corrupt: it cannot be read, is another version's, or of another manifest."""
        try:
            record = wire.loads(Record, self.record)
        except SpecError as error:
            raise Corrupt(f"the record of {self.address} cannot be read: {error}") from error
        if (record.volume, record.number) != self.place or record.digest != self.digest:
            raise Corrupt(
                f"the record of {self.address} is that of {record.volume}@{record.number}, {record.digest}"
            )
        return record

    @property
    def digest(self) -> str:
        """The version's digest."""
        return self.manifest.partition(b"\n")[0].decode(errors="replace")


class Home(Protocol):
    """A home of versions, which they are read from and written to. Each call that writes may be repeated after a kill at any point."""

    @property
    def where(self) -> str:
        """Its name for people."""

    def owner(self) -> str:
        """Return the uuid of the store that gave the versions their numbers; empty where there is none yet."""

    def holdings(self, volumes: Collection[str] = ()) -> dict[Place, Holding]:
        """Return every committed version, deleted ones included, at a cost of some 20 µs each.

        :param volumes: only those of these volumes.
        """

    def documents(self, place: Place) -> VersionDocuments:
        """Return the documents of a version. :raises NotFound: there is none. :raises Corrupt: it is damaged."""

    def local(self, place: Place) -> Path | None:
        """Return the folder of a version's files if it is on this machine."""

    def read(
        self,
        documents: VersionDocuments,
        entries: Sequence[Entry],
        *,
        first: int = 0,
        size: int | None = None,
    ) -> Iterator[bytes]:
        """Yield the bytes of these files, which are adjacent in the order of their paths.

        :param first: where to begin in the first of them. :param size: how many bytes; None: all that follow.
        :raises Corrupt: one is missing or has another length.
        """

    def code(self, digest: str) -> Path | None:
        """Return the folder of a code snapshot, or of an image's lock; None where it is not there."""

    def own(self, owner: str, *, adopt: bool = False) -> None:
        """Make this the mirror of a store, or make sure that it is.

        :param adopt: it becomes that store itself, as a restore needs.
        :raises Conflict: it holds versions of another store.
        """

    def receive(
        self, documents: VersionDocuments, source: Home, *, base: VersionDocuments | None, tell: Tell
    ) -> None:
        """Fetch what is missing of a version, so that :meth:`publish` can make it visible.

        What an earlier try brought is not fetched again, nor files that the base holds.

        :param base: a similar version that both sides hold.
        :raises Busy: another mirror brings the version.
        :raises Corrupt: the source's bytes are not those of its manifest.
        """

    def publish(self, versions: Sequence[VersionDocuments]) -> None:
        """Make received versions durable and visible; one that was damaged here is replaced.

        Of those of the call before, :meth:`verify` only compares the sizes from now on.
        """

    def mark(self, place: Place, holding: Holding) -> None:
        """Set the pins of a version, whether it is retired, and whether its data is deleted."""

    def free(self) -> None:
        """Free the space of what was deleted here at once: readers have an hour for it otherwise."""

    def verify(self, documents: VersionDocuments, *, drop: bool = False) -> list[str]:
        """Read again what was written of a version that was just published; return what is wrong with its files.

        Versions that were published together are verified in the order in which they were received.

        :param drop: a version that is wrong does not count as there any more, so that it is brought again.
        """

    def holds_code(self, digest: str) -> bool:
        """Whether a code snapshot is there."""

    def put_code(self, digest: str, folder: Path) -> None:
        """Keep a code snapshot."""

    def close(self) -> None:
        """Give back connections and locks; what is not published stays to be resumed."""


class KeepsCode:
    """The code snapshots of a home that is a store."""

    def __init__(self, snapshots: Snapshots) -> None:
        self._snapshots = snapshots

    def holds_code(self, digest: str) -> bool:
        """Whether a code snapshot is there."""
        return self._snapshots.holds(digest)

    def put_code(self, digest: str, folder: Path) -> None:
        """Keep a code snapshot."""
        found = self._snapshots.put(folder, list(files_below(folder)))
        if found != digest:
            raise Corrupt(f"code snapshot {digest} arrived as {found}: it was changed where it comes from")


def runs(entries: Sequence[Entry], wanted: Collection[str]) -> Iterator[list[Entry]]:
    """Cut the wanted files of a version into runs of adjacent ones, in the order of their paths."""
    run: list[Entry] = []
    for entry in entries:
        if entry.path in wanted:
            run.append(entry)
        elif run:
            yield run
            run = []
    if run:
        yield run


def stretches(
    entries: Sequence[Entry], *, first: int = 0, size: int | None = None, most: int | None = None
) -> Iterator[tuple[Entry, int, int]]:
    """Yield each file with where to begin and end in it, for :meth:`Home.read`; in pieces of at most `most` bytes where that is given."""
    left = size
    for entry in entries:
        begin = min(first, entry.size_bytes)
        first -= begin
        stop = entry.size_bytes if left is None else min(entry.size_bytes, begin + left)
        if left is not None:
            left -= stop - begin
        while begin < stop:
            end = stop if most is None else min(begin + most, stop)
            yield entry, begin, end
            begin = end


def ordered(documents: VersionDocuments) -> list[Entry]:
    """Return the files of a version in the order of their paths."""
    return list(documents.entries.values())


@contextmanager
def read_at_source(path: str) -> Iterator[None]:
    """Say of an error in the block that this file of the source is damaged, if it cannot be read.

    :raises Corrupt: it is gone, or its disk fails. Any other error is the target's.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _UNREADABLE or (why := _unreadable(path)) is None:
            raise
        raise Corrupt(f"{path} {why}: `muster volumes fsck` where it comes from says more") from error


def _unreadable(path: str) -> str | None:
    """Return what is wrong with a file; None where it can be read."""
    try:
        hash_file(path)
    except OSError as error:
        if error.errno in _UNREADABLE:
            return "is gone" if error.errno in _GONE else "cannot be read from its disk"
        raise
    return None


def refuse_other(
    where: str,
    found: str,
    owner: str,
    *,
    of: str = "this one",
    advice: str = "nothing was changed there; name an empty place, or the mirror of this store",
) -> None:
    """Refuse a home that another store writes. :param of: the store's name. :raises Conflict: another one does."""
    if found and found != owner:
        raise Conflict(
            f"{where} holds the versions of another store ({found[:12]}), not of {of} ({owner[:12]}): {advice}"
        )


def check_mirror(
    mirror: Home, store: Home, *, advice: str = "nothing was changed; name the mirror of this store"
) -> None:
    """Refuse to read a mirror that is not this store's. :raises NotFound: it is none. :raises Conflict: it is another's."""
    if not (found := mirror.owner()):
        raise NotFound(f"{mirror.where} holds no versions: is that the right place?")
    refuse_other(mirror.where, found, store.owner(), of=store.where, advice=advice)
