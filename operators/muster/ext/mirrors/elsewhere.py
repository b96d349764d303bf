"""Versions that this store lacks, read from its mirror: never written there, each fetched once and checked by its digest.

::

    CACHE/<hex>/data/     the files of a version with this digest; read-only; may be deleted when no process reads it

A version is asked for by its number or digest: only the store itself says what a partition, or ``@latest``, names.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from muster.core.address import Address, Select
from muster.core.errors import Conflict, Corrupt, MusterError, NotFound
from muster.ext.mirrors.base import Documents, Source
from muster.ext.mirrors.drafts import Filling
from muster.ext.mirrors.fetching import fetch
from muster.ext.mirrors.folder import FolderHome
from muster.volumes.base import Version
from muster.volumes.durability import locked, sync_all, translated
from muster.volumes.tree import folders_of, remove, set_modes

_LOG = logging.getLogger(__name__)


class Elsewhere:
    """The mirror of a store, as a place to read from.

    :param opened: opens it, when a version is first looked for there.
    """

    def __init__(self, opened: Callable[[], Source], cache: Path) -> None:
        self._opened, self._cache = opened, cache
        self._source: Source | None = None
        self._lock = threading.Lock()
        self._known: dict[str, Documents] = {}

    def find(self, address: str, *, lacks: NotFound) -> Documents:
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
                _LOG.warning(
                    "%s is not in this store: it is read from the mirror %s", key, self._home().where
                )
            return self._known[key]

    def _ask(self, wanted: Address, lacks: NotFound) -> Documents:
        """Look for a version; an error of the mirror is told beside what the store has said."""
        try:
            home = self._home()
            try:
                return self._look(home, wanted)
            except NotFound:
                raise lacks from None
        except MusterError as error:
            if error is lacks or isinstance(error, (Conflict, Corrupt)):
                raise
            raise NotFound(f"{lacks}; its mirror cannot be asked: {error}") from error

    def _look(self, home: Source, wanted: Address) -> Documents:
        if wanted.select is Select.NUMBER:
            return home.documents((wanted.volume, int(wanted.value)))
        held = home.holdings((wanted.volume,))
        found = [
            place for place, each in held.items() if each.digest.startswith(wanted.value) and not each.deleted
        ]
        if not found:
            raise NotFound(f"no version of {wanted.volume} has the digest {wanted.value}")
        return home.documents(found[-1])

    def _home(self) -> Source:
        if self._source is None:
            self._source = self._opened()
        return self._source

    def path(self, documents: Documents, inner: str) -> Path:
        """Return the folder of a version's files, or `inner` in it; fetched where it is not on this machine."""
        home = self._home()
        data = home.local(documents.place) if isinstance(home, FolderHome) else None
        data = data or self._fetched(home, documents)
        if inner and not (data / inner).exists():
            raise NotFound(
                f"{documents.address} holds no {inner!r:.120}: `muster volumes show` lists its files"
            )
        return data / inner if inner else data

    def _fetched(self, home: Source, documents: Documents) -> Path:
        target = self._cache / documents.digest.removeprefix("b3:")
        if not target.is_dir():
            with translated(f"fetch {documents.address} into {self._cache}"):
                self._cache.mkdir(parents=True, exist_ok=True)
                with locked(self._cache / f".{target.name}.lock"):
                    if not target.is_dir():  # else another process has fetched it
                        self._fetch(home, documents, target)
        return target / "data"

    def _fetch(self, home: Source, documents: Documents, target: Path) -> None:
        part = target.with_name(f".part-{target.name}")
        filling = Filling(part / "data", documents.entries, place=documents.place)
        fetch(filling, documents, home, lambda _: None)
        set_modes(part / "data", folders_of(part / "data"), 0o555)
        sync_all(part)
        part.rename(target)
        remove(part)

    def close(self) -> None:
        """Close the mirror."""
        if self._source is not None:
            self._source.close()


def version_of(documents: Documents) -> Version:
    """Return a version as a store describes it."""
    record = documents.origin
    entries = documents.entries
    found = Version(
        volume=documents.place[0],
        number=documents.place[1],
        digest=documents.digest,
        size_bytes=entries.size_bytes,
        files=len(entries),
        created=record.created,
        partition=record.partition,
    )
    return replace(found, retired=documents.holding.retired, pins=documents.holding.pins)
