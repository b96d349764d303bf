"""Brings a home up to another one: the versions that it lacks, what is pinned or served first, and all marks.

Nothing that is there is changed but marks, and what is damaged there. Each version becomes visible whole; a kill
loses at most the versions of one batch, whose files are gone on with.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from muster.core.address import pinned
from muster.core.errors import Conflict, Corrupt, NotFound, SpecError
from muster.ext.mirrors.base import Holding, Home, MirrorBusy, VersionDocuments
from muster.volumes.commit_records import Place

Progress = Callable[[str], None]

BATCH_VERSIONS = 256
_BATCH_BYTES = 1 << 30
_BATCH_SECONDS = 10.0
BASES, BASES_BYTES = (
    500,
    256 << 20,
)  # at most: versions that new ones are compared with, and the bytes of their manifests
LOOK_BACK = 24  # versions to read in search of the same partition
_TURN_SECONDS = 0.5
_UNREADABLE = object()


@dataclass(kw_only=True)
class Mirrored:
    """What a run has done.

    :param versions: addresses of the versions that are there now and were not. :param sent_bytes: bytes that travelled.
    :param present: versions that were there before. :param marked: those whose pins, retirement or deletion travelled.
    :param damaged: versions and code snapshots that cannot be read where they come from, and versions whose marks the
        target cannot set, each with the reason.
    :param wrong: versions that were read again and are not as they were sent: the next run brings them anew.
    :param unknown: versions that only the target has.
    """

    versions: list[str] = field(default_factory=list)
    sent_bytes: int = 0
    present: int = 0
    marked: int = 0
    damaged: dict[str, str] = field(default_factory=dict)
    wrong: dict[str, list[str]] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        """Whether the target has all that the source has, as it is there."""
        return not self.damaged and not self.wrong


class Copying:
    """One run from a source to a target.

    :param keep_deleted: what gc deleted at the source stays at the target.
    :param now: the space of what is deleted at the target is free before anything is brought.
    :param adopt: the target becomes the store that the versions are from, as a restore needs.
    """

    def __init__(
        self,
        source: Home,
        target: Home,
        *,
        volumes: Collection[str] = (),
        keep_deleted: bool = False,
        verify: bool = True,
        now: bool = False,
        adopt: bool = False,
        progress: Progress = lambda _: None,
    ) -> None:
        self._source, self._target = source, target
        self._volumes, self._keep_deleted, self._verify = tuple(volumes), keep_deleted, verify
        self._now, self._adopt, self._progress = now, adopt, progress
        self.done = Mirrored()
        self._have: Mapping[Place, Holding] = {}
        self._there: dict[Place, Holding] = {}
        self._last: dict[tuple[str, str | None], VersionDocuments] = {}
        self._partitions: dict[Place, object] = {}
        self._codes = set[str]()
        self._said = 0.0

    def run(self) -> Mirrored:
        """Do it, and return what was done.

        :raises Conflict: the target is another store's, or has another version under the same number.
        :raises NotFound: the source has no versions.
        """
        if self._source.where == self._target.where:
            raise SpecError(f"{self._source.where} cannot be a mirror of itself: name another place")
        owner = self._source.owner()
        self._have = self._source.holdings(self._volumes)
        if not owner or not self._have:
            raise NotFound(f"{self._source.where} holds no versions: is that the right place?")
        self._target.own(owner, adopt=self._adopt)
        there = self._target.holdings()  # which may not know some of the wanted volumes
        self._there = {
            place: each for place, each in there.items() if not self._volumes or place[0] in self._volumes
        }
        self._refuse_others()
        wanted = self._wanted()
        if not self._adopt:  # a restore changes nothing that is there
            self._mark(self._have)
        if self._now:
            self._target.free()
        brought = self._bring(in_order(self._have, wanted))
        self._mark(brought if self._adopt else self._have)
        return self.done

    def _refuse_others(self) -> None:
        """Refuse a target with another version under the same number. :raises Conflict: names the first."""
        for place, holding in self._have.items():
            there = self._there.get(place)
            if there is not None and there.digest and holding.digest and there.digest != holding.digest:
                raise Conflict(
                    f"{pinned(*place)} is {there.digest[:19]} at {self._target.where} and {holding.digest[:19]} at "
                    f"{self._source.where}: two stores have given out this number. Nothing was changed; mirror to an "
                    "empty place, and compare the two"
                )
        self.done.unknown = [pinned(*place) for place in self._there if place not in self._have]

    def _wanted(self) -> list[Place]:
        wanted = []
        for place, holding in self._have.items():
            if not holding.digest:
                self.done.damaged[pinned(*place)] = "its files or its manifest are gone"
            elif self._lacks(place, self._there.get(place)):
                wanted.append(place)
            else:
                self.done.present += 1
        return wanted

    def _lacks(self, place: Place, there: Holding | None) -> bool:
        """Whether the target lacks a version, or has it damaged, or deleted while the source has it whole."""
        return there is None or not there.digest or (there.deleted and not self._have[place].deleted)

    def _bring(self, places: Sequence[Place]) -> dict[Place, Holding]:
        """Bring versions; those that another mirror brings are waited for in the end, or brought where it was ended."""
        brought, busy = self._bring_free(places)
        while busy:
            self._progress(f"waiting for {len(busy)} versions that another mirror brings")
            time.sleep(_TURN_SECONDS)  # the other mirror has this long for its next version
            more, busy = self._bring_free(self._still_missing(busy))
            brought |= more
        return brought

    def _bring_free(self, places: Sequence[Place]) -> tuple[dict[Place, Holding], list[Place]]:
        """Bring versions in batches; return them, and those that another mirror brings just now."""
        brought, batch, busy = dict[Place, Holding](), list[VersionDocuments](), list[Place]()
        began, sent = time.monotonic(), self.done.sent_bytes
        for index, place in enumerate(places):
            try:
                if (documents := self._receive(place, index, len(places))) is not None:
                    batch.append(documents)
            except MirrorBusy:
                busy.append(place)
            full = len(batch) >= BATCH_VERSIONS or self.done.sent_bytes - sent >= _BATCH_BYTES
            if full or time.monotonic() - began > _BATCH_SECONDS:
                brought |= self._publish(batch)
                batch, began, sent = [], time.monotonic(), self.done.sent_bytes
        return brought | self._publish(batch), busy

    def _still_missing(self, busy: Sequence[Place]) -> list[Place]:
        there = self._target.holdings()
        left = [place for place in busy if self._lacks(place, there.get(place))]
        self._there |= {place: there[place] for place in busy if place in there}
        self.done.present += len(busy) - len(left)
        return left

    def _receive(self, place: Place, index: int, count: int) -> VersionDocuments | None:
        """Fetch one version; None where it is damaged, or gone meanwhile. :raises Busy: another mirror has it."""
        address = pinned(*place)
        try:
            try:
                documents = self._source.documents(place)
            except NotFound:
                return None  # deleted meanwhile
            there = self._there.get(place)
            if documents.holding.deleted and there is not None and there.deleted:
                return None  # gc took it meanwhile: it is the same at both sides
            base = self._base(documents)
            self._copy_code(documents)

            def tell(size: int) -> None:
                self.done.sent_bytes += size
                if time.monotonic() - self._said > 0.1:
                    self._said = time.monotonic()
                    self._progress(f"{index + 1}/{count} {address}, {self.done.sent_bytes >> 20} MiB sent")

            tell(0)
            self._target.receive(documents, self._source, base=base, tell=tell)
        except Corrupt as error:
            if not self._is_deleted_now(place):
                self.done.damaged[address] = str(error)
            return None
        if not documents.holding.deleted:
            self._remember(documents)
        return documents

    def _is_deleted_now(self, place: Place) -> bool:
        """Whether gc took a version meanwhile, which no lease kept: nothing is wrong with it."""
        if self._have[place].deleted:
            return False
        with suppress(Corrupt, NotFound):
            return self._source.documents(place).holding.deleted
        return False

    def _remember(self, documents: VersionDocuments) -> None:
        """Keep the newest version of a partition as a base for the next; of many partitions, or large versions, only the last."""
        self._last[documents.place[0], documents.origin.partition] = documents
        while len(self._last) > 1 and (
            len(self._last) > BASES or sum(len(each.manifest) for each in self._last.values()) > BASES_BYTES
        ):
            del self._last[next(iter(self._last))]

    def _publish(self, batch: Sequence[VersionDocuments]) -> dict[Place, Holding]:
        """Make versions visible, and read each again: one that is wrong is no base, and does not count as there."""
        self._target.publish(batch)
        right = dict[Place, Holding]()
        for index, documents in enumerate(batch):
            if self._verify and (wrong := self._read_again(documents, f"{index}/{len(batch)}")):
                self.done.wrong[documents.address] = wrong
                self._there.pop(documents.place, None)
                self._last = {key: each for key, each in self._last.items() if each.place != documents.place}
            else:
                self.done.versions.append(documents.address)
                self._there[documents.place] = right[documents.place] = documents.holding
        return right

    def _read_again(self, documents: VersionDocuments, count: str) -> list[str]:
        self._progress(f"{count} {documents.address} is read again")
        return self._target.verify(documents, drop=True)

    def _base(self, documents: VersionDocuments) -> VersionDocuments | None:
        """Return a version of the same partition that both sides have, whose files this one is likely to share."""
        (volume, number), partition = documents.place, documents.origin.partition
        if (last := self._last.get((volume, partition))) is not None:
            return last
        for earlier in range(number - 1, max(0, number - 1 - LOOK_BACK), -1):
            place = (volume, earlier)
            if self._is_live(place) and self._partition(place) == partition:
                with suppress(Corrupt, NotFound):  # what is wrong with it is no matter of this version
                    found = self._source.documents(place)
                    found.entries  # noqa: B018 - raises where its manifest is torn
                    self._remember(found)
                    return found
        return None

    def _is_live(self, place: Place) -> bool:
        sides = self._have.get(place), self._there.get(place)
        return all(each is not None and each.digest and not each.deleted for each in sides)

    def _partition(self, place: Place) -> object:
        """Return the partition of a version; what equals none where it cannot be read."""
        if place not in self._partitions:
            try:
                self._partitions[place] = self._source.documents(place).origin.partition
            except (Corrupt, NotFound):
                self._partitions[place] = _UNREADABLE
        return self._partitions[place]

    def _copy_code(self, documents: VersionDocuments) -> None:
        """Bring the code and the image's lock that a version was made with, where the source still has them."""
        for digest in {documents.origin.code, documents.origin.image_digest} - {None, ""} - self._codes:
            assert digest is not None
            self._codes.add(digest)
            try:
                if not self._target.holds_code(digest) and (folder := self._source.code(digest)) is not None:
                    self._target.put_code(digest, folder)
            except Corrupt as error:  # the versions that it made are whole without it
                self.done.damaged[f"code snapshot {digest}"] = str(error)

    def _mark(self, places: Collection[Place]) -> None:
        """Have pins, retirements and deletions of these versions travel; deletions first: they make room for the rest."""
        for place in sorted(places, key=lambda place: not self._have[place].deleted):
            holding, there = self._have[place], self._there.get(place)
            if not holding.digest or there is None or self._lacks(place, there):
                continue  # the marks of a version that is still to come travel with it
            if holding.deleted and there.deleted:
                continue  # marks of what is gone change nothing
            keep = holding.deleted and self._keep_deleted
            wanted = replace(holding, deleted=False) if keep else holding
            if wanted.deleted:
                wanted = replace(wanted, pins=there.pins)
            if wanted != there:
                self._mark_one(place, wanted)

    def _mark_one(self, place: Place, wanted: Holding) -> None:
        """Set the marks of a version; one that is damaged or gone at the target is named, and keeps no other from coming."""
        try:
            self._target.mark(place, wanted)
        except (Corrupt, NotFound) as error:
            self.done.damaged[pinned(*place)] = f"its marks cannot be set at {self._target.where}: {error}"
            return
        self._there[place] = wanted
        self.done.marked += 1


def in_order(have: Mapping[Place, Holding], places: Sequence[Place]) -> list[Place]:
    """Return places in the order in which they are brought: served, pinned, live, deleted; each oldest first."""

    def rank(place: Place) -> tuple[int, Place]:
        holding = have[place]
        if holding.deleted:
            return 3, place
        return (0 if holding.served else 1 if holding.pins else 2), place

    return sorted(places, key=rank)
