"""Versions that this store lacks, read from its mirror: never written there, each fetched once and checked by its digest.

::

    CACHE/<hex>/data/     the files of a version with this digest; read-only; may be deleted when no process reads it

A version is asked for by its number or digest: only the store itself says what a partition, or ``@latest``, names.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from muster.core.address import Address, Select
from muster.core.errors import Conflict, Corrupt, MusterError, NotFound
from muster.core.settings import Settings
from muster.ext.mirrors.base import Home, VersionDocuments, check_mirror
from muster.ext.mirrors.drafts import Filling, fetch
from muster.ext.mirrors.folder import FolderHome
from muster.ext.mirrors.opening import home_of, open_home
from muster.volumes.base import Record, Version
from muster.volumes.durability import locked, sync_all, translated
from muster.volumes.folder import FolderStore
from muster.volumes.listing import Listing
from muster.volumes.protocols import LocalStore
from muster.volumes.tree import folders_of, remove, set_modes

if TYPE_CHECKING:
    _Base = FolderStore
else:
    _Base = object

T = TypeVar("T")
_LOG = logging.getLogger(__name__)


class MirrorReads:
    """The mirror of a store, as a place to read from. It is opened when a version is first looked for there."""

    def __init__(self, store: LocalStore, settings: Settings) -> None:
        self._store, self._settings = store, settings
        self._cache = settings.cache / "mirrored"
        self._lock = threading.Lock()
        self._known: dict[str, VersionDocuments] = {}

    def find(self, address: str, *, lacks: NotFound) -> VersionDocuments:
        """Return the documents of the version that an address names in the mirror.

        :param lacks: what the store has said; it is raised where the mirror lacks the version, or its data, too.
        :raises Conflict: it is another store's mirror.
        """
        wanted = Address.parse(address)
        key = f"{wanted.volume}@{wanted.value}"
        if wanted.select not in (Select.NUMBER, Select.DIGEST):
            raise lacks
        with self._lock:
            if key not in self._known:
                self._known[key] = self._ask(wanted, lacks)
                if self._known[key].holding.deleted:
                    raise lacks
                _LOG.warning("%s is not in this store: it is read from the mirror %s", key, self._home.where)
            return self._known[key]

    def _ask(self, wanted: Address, lacks: NotFound) -> VersionDocuments:
        """Look for a version; an error of the mirror is told beside what the store has said."""
        try:
            home = self._home
            try:
                return self._look(home, wanted)
            except NotFound:
                raise lacks from None
        except MusterError as error:
            if error is lacks or isinstance(error, (Conflict, Corrupt)):
                raise
            raise NotFound(f"{lacks}; its mirror cannot be asked: {error}") from error

    def _look(self, home: Home, wanted: Address) -> VersionDocuments:
        if wanted.select is Select.NUMBER:
            return home.documents((wanted.volume, int(wanted.value)))
        held = home.holdings((wanted.volume,))
        found = [
            place for place, each in held.items() if each.digest.startswith(wanted.value) and not each.deleted
        ]
        if not found:
            raise NotFound(f"no version of {wanted.volume} has the digest {wanted.value}")
        return home.documents(found[-1])

    @cached_property
    def _home(self) -> Home:
        """The mirror. :raises Conflict: it is another store's, which gives the same numbers to other data."""
        mirror = open_home(self._settings.mirror, self._settings)
        try:
            check_mirror(
                mirror,
                home_of(self._store),
                advice="nothing is read from it; let MUSTER_MIRROR, or `mirror` under [muster], name a mirror of this store",
            )
        except MusterError:
            mirror.close()
            raise
        return mirror

    def path(self, documents: VersionDocuments, inner: str) -> Path:
        """Return the folder of a version's files, or `inner` in it; fetched where it is not on this machine."""
        home = self._home
        data = home.local(documents.place) if isinstance(home, FolderHome) else None
        data = data or self._fetched(home, documents)
        if inner and not (data / inner).exists():
            raise NotFound(
                f"{documents.address} holds no {inner!r:.120}: `muster volumes show` lists its files"
            )
        return data / inner if inner else data

    def _fetched(self, home: Home, documents: VersionDocuments) -> Path:
        target = self._cache / documents.digest.removeprefix("b3:")
        if not target.is_dir():
            with translated(f"fetch {documents.address} into {self._cache}"):
                self._cache.mkdir(parents=True, exist_ok=True)
                with locked(self._cache / f".{target.name}.lock"):
                    if not target.is_dir():  # else another process has fetched it
                        self._fetch(home, documents, target)
        return target / "data"

    def _fetch(self, home: Home, documents: VersionDocuments, target: Path) -> None:
        part = target.with_name(f".part-{target.name}")
        filling = Filling(part / "data", documents.entries, place=documents.place)
        fetch(filling, documents, home, lambda _: None)
        set_modes(part / "data", folders_of(part / "data"), 0o555)
        sync_all(part)
        part.rename(target)
        remove(part)

    def close(self) -> None:
        """Close the mirror."""
        if "_home" in vars(self):
            self._home.close()


def _version_of(documents: VersionDocuments) -> Version:
    """Return a version as a store describes it."""
    record, entries = documents.origin, documents.entries
    return Version(
        volume=documents.place[0],
        number=documents.place[1],
        digest=documents.digest,
        size_bytes=entries.size_bytes,
        files=len(entries),
        created=record.created,
        partition=record.partition,
        retired=documents.holding.retired,
        pins=documents.holding.pins,
    )


class _ReadsMirror(_Base):
    """Makes a store read versions from its mirror that it lacks, by number or digest; nothing is written there."""

    def __init__(self, *args: Any, settings: Settings, **rules: Any) -> None:
        super().__init__(*args, **rules)
        self.elsewhere = MirrorReads(self, settings)

    def _or_there(self, here: Callable[[str], T], address: str, there: Callable[[VersionDocuments], T]) -> T:
        """Return what this store says of a version, or what is said of it in the mirror."""
        try:
            return here(address)
        except NotFound as lacks:
            return there(self.elsewhere.find(address, lacks=lacks))

    def resolve(self, address: str) -> tuple[Version, ...]:
        """Return the versions that an address names now."""
        return self._or_there(super().resolve, address, lambda found: (_version_of(found),))

    def record(self, address: str) -> Record:
        """Return one version's record."""
        return self._or_there(super().record, address, lambda found: found.origin)

    def records(self, addresses: Sequence[str]) -> list[Record]:
        """Return the record of each address, in their order."""
        try:
            return super().records(addresses)
        except NotFound:
            return [self.record(address) for address in addresses]

    def manifest(self, address: str) -> Listing:
        """Return every file of one version by its path."""
        return self._or_there(super().manifest, address, lambda found: found.entries)

    def path(self, address: str) -> Path:
        """Return the folder of one version's data, or the file that the address names in it."""
        inner = Address.parse(address).path
        return self._or_there(super().path, address, lambda found: self.elsewhere.path(found, inner))

    def lease(self, addresses: Iterable[str], *, holder: str) -> None:
        """Keep versions from gc while `holder` reads them; those of the mirror need no lease."""
        super().lease(filter(self._is_here, addresses), holder=holder)

    def _is_here(self, address: str) -> bool:
        return bool(self._or_there(super().resolve, address, lambda _: ()))

    def close(self) -> None:
        """Close open connections."""
        self.elsewhere.close()
        super().close()


def reads_mirror(kind: type[FolderStore], settings: Settings) -> Callable[..., FolderStore]:
    """Return what opens a store of this class that reads from the mirror of the settings."""
    return partial(type(f"Mirrored{kind.__name__}", (_ReadsMirror, kind), {}), settings=settings)
