"""What is read of one version, and cached: the facts that never change, and its record.

A version is believed if a commit record names it and has the digest of its RECORD.json (:mod:`muster.volumes.commit_records`).
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from muster.core import wire
from muster.core.errors import Corrupt, SpecError
from muster.volumes import tombstones
from muster.volumes.base import Record
from muster.volumes.commit_records import CommitRecord, check_record, is_committed, read_commit
from muster.volumes.layout import Layout
from muster.volumes.manifest import Head, read_head

RECORDS = 1_000
FACTS = 100_000


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
