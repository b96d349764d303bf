"""The versions in a folder store, their records, and how an address selects among them.

A version is visible when a commit record names it (:mod:`muster.volumes.commit_records`); before that no
reader sees any part of the commit. Nothing here changes the store, but for the file of what was read
(:mod:`muster.volumes.partitions`). A version is believed if a commit record names it and has the digest of its RECORD.json.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from muster.core import wire
from muster.core.address import Address, Select
from muster.core.errors import Corrupt, NotFound, SpecError
from muster.volumes import partitions, tombstones
from muster.volumes.base import Record, Version
from muster.volumes.commit_records import (
    CommitRecord,
    check_record,
    has_content,
    is_buried,
    is_committed,
    read_commit,
    retired,
)
from muster.volumes.durability import read_whole
from muster.volumes.layout import Layout
from muster.volumes.listing import Listing, open_manifest, parse
from muster.volumes.manifest import Head, read_head
from muster.volumes.partitions import NOTHING, Known
from muster.volumes.selection import by_digest, no_number, no_volume, nothing, select
from muster.volumes.tombstones import Tombstone

RECORDS = 1_000
FACTS = 100_000
_SETTLED_NS = 2_000_000_000  # two changes within one tick of a file system's clock look like one


class VersionFacts(NamedTuple):
    """The facts of a version that never change and every read needs: some 600 bytes."""

    head: Head
    created: float
    partition: str | None


class Facts:
    """Reads single versions of one store.

    Facts that never change are cached, of :data:`FACTS` versions at most; of records, which may be large, only the
    last :data:`RECORDS`.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._known: dict[tuple[str, int], VersionFacts] = {}
        self._read = lru_cache(RECORDS)(self._read_now)
        self._commits: dict[str, CommitRecord] = {}

    def known(self, volume: str, number: int) -> VersionFacts | None:
        """Return the facts of a version, if this process has read them."""
        return self._known.get((volume, number))

    def of(self, volume: str, number: int) -> VersionFacts | None:
        """Return the facts of a visible version; None where it is not committed.

        :raises Corrupt: it is damaged.
        """
        known = self.known(volume, number)
        if known is None:
            whole = self.whole(volume, number)
            if whole is None:
                return None
            known = self.remember(volume, number, *whole)
        return known

    def remember(self, volume: str, number: int, head: Head, record: Record) -> VersionFacts:
        """Return the facts in a version's head and record, and cache them."""
        if len(self._known) >= FACTS:
            self._known = {}  # not one by one: a look at more versions than fit would find none of them
        facts = self._known[volume, number] = VersionFacts(head, record.created, record.partition)
        return facts

    def whole(self, volume: str, number: int, *, now: bool = False) -> tuple[Head, Record] | None:
        """Return the manifest's head and the record of a version, deleted or not; None where it is not committed.

        :param now: whether to read it even if it is cached.
        :raises Corrupt: it is damaged.
        """
        read = self._read_now if now else self._read
        try:
            return read(volume, number)
        except (SpecError, Corrupt, OSError):
            if not is_committed(self._layout, volume, number):
                gone = tombstones.find(self._layout, volume, number)
                return None if gone is None else (gone.head, gone.origin)
        try:
            return read(volume, number)  # it may have been committed in the meantime
        except (SpecError, Corrupt, OSError) as error:
            raise Corrupt(damaged(volume, number, str(error))) from error

    def _read_now(self, volume: str, number: int) -> tuple[Head, Record]:
        folder = self._layout.version(volume, number)
        text = (folder / "RECORD.json").read_bytes()
        record = wire.loads(Record, text)
        check_record(text, record, (volume, number), self._commit(record.job_id))
        head = read_head(folder / "MANIFEST")
        if head.digest != record.digest:
            raise Corrupt("its MANIFEST is not the one that its RECORD.json names")
        return head, record

    def _commit(self, job_id: str) -> CommitRecord | None:
        """Return a job's commit record, cached: the versions of one job share it."""
        commit = self._commits.get(job_id) or read_commit(self._layout, job_id)
        if commit is not None:
            self._commits = {job_id: commit}
        return commit


def damaged(volume: str, number: int, why: str) -> str:
    """Say that a version is damaged, and what to do."""
    return (
        f"{volume}@{number} is damaged ({why}): no selector finds it; retire it (`muster volumes "
        f"retire {volume}@{number}`) and run the stage that wrote it again, or bring its bytes from a "
        "mirror (`muster volumes fsck --deep --repair-from MIRROR`)"
    )


class Catalog:
    """Reads the versions of one store."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._facts = Facts(layout)
        self._counts: dict[str, tuple[tuple[int, int], int]] = {}

    def numbers(self, volume: str) -> list[int]:
        """The numbers of the visible versions, ascending, deleted ones included."""
        here = {n for n in self._layout.numbers(volume) if self._there(volume, n)}
        # After them: what is folded meanwhile is in both.
        return sorted(here | tombstones.above(self._layout, volume, 0, lambda _: None).keys())

    def holds(self, volume: str) -> bool:
        """Whether any version is visible, deleted ones included; usually reads one."""
        return any(self._there(volume, n) for n in reversed(self._layout.numbers(volume)))

    def volumes(self) -> list[str]:
        """Return the name of every volume with a visible version, sorted."""
        return sorted(name for name in self._layout.volumes() if self.holds(name))

    def count(self, volume: str) -> int:
        """Count versions that have their data, without reading them; lists again only after a change."""
        folder = self._layout.volume(volume)
        if not folder.is_dir():
            return 0
        # A version is renamed into the folder, and out of it into the trash.
        changed = (folder.stat().st_mtime_ns, self._layout.trash.stat().st_mtime_ns)
        known = self._counts.get(volume)
        if known is not None and known[0] == changed:
            return known[1]
        count = sum(os.path.isdir(f"{folder}/{n}/data") for n in self._layout.numbers(volume))  # noqa: PTH112 - a tenth of Path's time
        if time.time_ns() - max(changed) > _SETTLED_NS:
            self._counts[volume] = (changed, count)
        return count

    def newest(
        self, volume: str, *, limit: int, before: int | None = None, partition: str | None = None
    ) -> list[Version]:
        """Return the newest versions whose data is there, newest first; no others are read.

        :param partition: of this one alone; None: of any, and those without one.
        """
        numbers = self._layout.numbers(volume) if partition is None else self._of(volume, partition)
        found = (self.readable(volume, n) for n in reversed(numbers) if before is None or n < before)
        wanted = (v for v in found if v is not None and partition in (None, v.partition))
        return list(islice(wanted, limit))

    def _of(self, volume: str, partition: str) -> list[int]:
        return sorted(n for n, name in self.partitions(volume).items() if name == partition)

    def last(self, volume: str, partition: str | None = None) -> int:
        """Return the highest visible number of a volume's partition, deleted ones included; 0 where there is none."""
        here = self._last_here(volume, partition)
        return max((n for n, each in self.folded(volume, here).items() if each == partition), default=here)

    def folded(self, volume: str, number: int) -> dict[int, str | None]:
        """Return the partition of each folded version with a higher number."""
        return tombstones.above(
            self._layout, volume, number, lambda gone: wire.loads_field(Record, "partition", gone.record)
        )

    def _last_here(self, volume: str, partition: str | None) -> int:
        """Return the highest of those numbers that have a folder."""
        numbers = self._layout.numbers(volume)[::-1]
        few, known = numbers[: partitions.MOST_UNREAD], dict[int, str | None]()
        for number in few:
            if self.is_in(volume, number, partition):
                return number
        if len(numbers) > len(few):
            known = self.partitions(volume)
        rest = (n for n in numbers[len(few) :] if known.get(n, partition) == partition)
        return next((number for number in rest if self.is_in(volume, number, partition)), 0)

    def partitions(self, volume: str) -> dict[int, str | None]:
        """Return the partition of each visible number, deleted ones included; damaged ones are left out.

        Reads the records of those versions alone that neither this process nor the store's file of partitions knows.
        """
        numbers = self._layout.numbers(volume)
        facts = {number: self._facts.known(volume, number) for number in numbers}
        found = {number: known.partition for number, known in facts.items() if known is not None}
        said = NOTHING
        if len(numbers) - len(found) >= partitions.MOST_UNREAD:
            said = self._said(volume, numbers)
            found |= said.partitions
        unread = [number for number in numbers if number not in found]
        many, here, job_id = len(unread) >= partitions.MOST_UNREAD, dict[int, str | None](), ""
        for number in unread:
            with suppress(Corrupt):
                whole = self._facts.whole(volume, number, now=many)
                if whole is not None:
                    here[number] = self._facts.remember(volume, number, *whole).partition
                    job_id = whole[1].job_id
        if len(here) >= partitions.MOST_UNREAD:
            # Nothing that this process remembers: a person may have deleted the volume's folder since.
            with suppress(OSError):  # a reader may not be allowed to write
                partitions.write(self._layout, volume, said.joined(here, job_id))
        return found | here

    def _said(self, volume: str, numbers: Sequence[int]) -> Known:
        """Return what the file of partitions says, if it is about the versions that are there now."""
        known = partitions.read(self._layout, volume, numbers)
        if known is not None:
            with suppress(SpecError, OSError):
                text = (self._layout.version(volume, max(known.partitions)) / "RECORD.json").read_bytes()
                if wire.loads(Record, text).job_id == known.job_id:
                    return known
        return NOTHING

    def is_in(self, volume: str, number: int, partition: str | None) -> bool:
        """Whether a number is visible and of a partition; one that is damaged may be of any."""
        try:
            facts = self._facts.of(volume, number)
        except Corrupt:
            return True
        return facts is not None and facts.partition == partition

    def versions(self, volume: str) -> list[Version]:
        """Return every version whose data is there, oldest first, with retired ones, without damaged ones."""
        numbers = self._layout.numbers(volume)
        while True:
            found = [self.readable(volume, number) for number in numbers]
            now = self._layout.numbers(volume)
            if now == numbers:
                return [version for version in found if version is not None]
            numbers = now  # a commit came meanwhile, and may have retired what it replaces

    def damaged(self, volume: str) -> list[Version]:
        """Return every version with a wrong record, or whose data is gone though gc did not delete it."""
        numbers = self._layout.numbers(volume)
        return [self.remains(volume, number) for number in numbers if self.is_damaged(volume, number)]

    def version(self, volume: str, number: int) -> Version | None:
        """Return a visible version whose data is there, or None. :raises Corrupt: it is damaged."""
        folder = self._layout.version(volume, number)
        if (folder / "data").is_dir():
            facts = self._facts.of(volume, number)
            return None if facts is None else self._described(volume, number, facts)
        if not is_buried(folder) and is_committed(self._layout, volume, number):
            raise Corrupt(damaged(volume, number, "its data is gone, and gc did not delete it"))
        return None

    def described(self, volume: str, number: int) -> Version:
        """Return a committed version, even if its data is deleted. :raises NotFound: there is none."""
        facts = self._facts.of(volume, number)
        if facts is None:
            raise NotFound(self._no_number(volume, number))
        here = has_content(self._layout.version(volume, number))
        return self._described(
            volume, number, facts, None if here else tombstones.find(self._layout, volume, number)
        )

    def _described(
        self, volume: str, number: int, facts: VersionFacts, gone: Tombstone | None = None
    ) -> Version:
        folder = self._layout.version(volume, number)
        return Version(
            volume=volume,
            number=number,
            digest=facts.head.digest,
            size_bytes=facts.head.size_bytes,
            files=facts.head.files,
            created=facts.created,
            partition=facts.partition,
            retired=retired(self._layout, folder) if gone is None else gone.retired,
            pins=pins(folder) if gone is None else gone.pins,
        )

    def record_of(self, volume: str, number: int) -> Record:
        """Return the record of a visible version, even if its data is deleted."""
        whole = self._facts.whole(volume, number)
        if whole is None:
            raise NotFound(self._no_number(volume, number))
        return whole[1]

    def record(self, address: str) -> Record:
        """See :meth:`muster.volumes.protocols.VersionStore.record`."""
        wanted = Address.parse(address)
        if wanted.value.isdigit():
            return self.record_of(wanted.volume, int(wanted.value))
        version = self.one(address)
        return self.record_of(version.volume, version.number)

    def records(self, addresses: Sequence[str]) -> list[Record]:
        """See :meth:`muster.volumes.protocols.VersionStore.records`."""
        return [self.record(address) for address in addresses]

    def manifest(self, address: str) -> Listing:
        """See :meth:`muster.volumes.protocols.VersionStore.manifest`."""
        record = self.record(address)
        path = self._layout.version(record.volume, record.number) / "MANIFEST"
        try:
            return open_manifest(path)
        except FileNotFoundError:
            if (gone := tombstones.find(self._layout, record.volume, record.number)) is None:
                raise
            return parse(gone.manifest.encode(), where=path)

    def path(self, address: str) -> Path:
        """See :meth:`muster.volumes.protocols.LocalStore.path`."""
        inner = Address.parse(address).path
        version = self.one(address)
        data = self._layout.version(version.volume, version.number) / "data"
        if inner and not (data / inner).exists():
            there = ", ".join(sorted(os.listdir(data))[:8])  # noqa: PTH208 - names are all that is wanted
            raise NotFound(f"{version.address} holds no {inner!r:.120}; at its top are {there}")
        return data / inner if inner else data

    def one(self, address: str) -> Version:
        """The one version that an address names. :raises SpecError: it names several."""
        versions = self.resolve(address)
        if len(versions) != 1 or Address.parse(address).many:
            raise SpecError(f"{address} names several versions; name one, such as {versions[-1].address}")
        return versions[0]

    def resolve(self, address: str) -> tuple[Version, ...]:
        """See :meth:`muster.volumes.protocols.Store.resolve`."""
        wanted = Address.parse(address)
        if wanted.select is Select.NUMBER:
            return (self._number(wanted.volume, int(wanted.value)),)
        volume = wanted.volume
        if wanted.select is Select.DIGEST:
            found = by_digest(wanted, self._digests(volume), lambda number: self.readable(volume, number))
            if not found:
                raise NotFound(self._nothing(wanted, {}))
            return found
        known = self.partitions(volume)
        while True:
            found = select(wanted, known, lambda number: self.readable(volume, number))
            why = "" if found else self._nothing(wanted, known)
            now = self.partitions(volume)
            if now == known:
                break
            known = now  # a commit came meanwhile, and may have retired what it replaces
        if not found:
            raise NotFound(why)
        return found

    def _digests(self, volume: str) -> dict[int, str]:
        """Return the digest of each number, as its manifest begins; of a number without one none."""
        folder, found = self._layout.volume(volume), dict[int, str]()
        for number in self._layout.numbers(volume):
            known = self._facts.known(volume, number)
            with suppress(Corrupt, OSError):
                head = known.head if known is not None else read_head(folder / str(number) / "MANIFEST")
                found[number] = head.digest
        return found

    def _nothing(self, wanted: Address, known: Mapping[int, str | None]) -> str:
        volume = wanted.volume
        newest = self.newest(volume, limit=1, before=None)
        if newest:
            return nothing(wanted, known, lambda number: self.readable(volume, number), newest=newest[0])
        for version in self.damaged(volume):
            self.version(volume, version.number)  # raises Corrupt, which says what to do
        return self._no_volume(volume)

    def _number(self, volume: str, number: int) -> Version:
        try:
            version = self.version(volume, number)
        except Corrupt:
            if retired(self._layout, self._layout.version(volume, number)) is None:
                raise
            raise NotFound(
                f"{volume}@{number} is damaged and was retired: run the stage that writes it again"
            ) from None
        if version is None:
            raise NotFound(self._no_number(volume, number))
        return version

    def readable(self, volume: str, number: int) -> Version | None:
        """Return a visible version whose data is there; None where it is not, or is damaged."""
        with suppress(Corrupt):
            return self.version(volume, number)
        return None

    def _there(self, volume: str, number: int) -> bool:
        try:
            return self._facts.of(volume, number) is not None
        except Corrupt:
            return True

    def is_damaged(self, volume: str, number: int) -> bool:
        """Whether :meth:`version` raises Corrupt."""
        try:
            self.version(volume, number)
        except Corrupt:
            return True
        return False

    def remains(self, volume: str, number: int) -> Version:
        """Return a damaged version as far as it is known: its place, its time, and whether it is retired."""
        folder = self._layout.version(volume, number)
        return Version(
            volume=volume,
            number=number,
            digest="",
            size_bytes=0,
            files=0,
            created=folder.stat().st_ctime if folder.is_dir() else 0.0,
            retired=retired(self._layout, folder),
            pins=pins(folder),
        )

    def _no_volume(self, volume: str) -> str:
        if volume in self._layout.volumes() and self.holds(volume):
            return f"every version of {volume} was deleted by gc: run the stage that writes it again"
        return no_volume(volume, self.volumes(), where=self._layout.root)

    def _no_number(self, volume: str, number: int) -> str:
        numbers = [version.number for version in self.versions(volume)]
        if not numbers:
            return self._no_volume(volume)
        return no_number(volume, number, numbers, deleted=self._there(volume, number))


def pins(folder: Path) -> tuple[str, ...]:
    """Return the reasons of all pins on the version in `folder`."""
    reasons = []
    with suppress(FileNotFoundError):  # it was never pinned
        for path in (folder / "pins").iterdir():
            with suppress(FileNotFoundError):  # this pin was just removed; the others still count
                if not path.name.startswith("."):  # still being written, or deleted while open (NFS)
                    reasons.append(read_whole(path).decode())
    return tuple(sorted(reasons))
