"""Opens the store of this machine, or a cluster's, with the mirror that its settings name to read from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from muster.core.address import Address
from muster.core.errors import NotFound
from muster.core.settings import Settings
from muster.volumes.base import Record, Version
from muster.volumes.folder import FolderStore
from muster.volumes.listing import Listing

if TYPE_CHECKING:
    from collections.abc import Iterable

    from muster.volumes.mirrors.elsewhere import Elsewhere
    from muster.volumes.service.client import ServiceStore

    Base = FolderStore
else:
    Base = object


class ReadsMirror(Base):
    """Makes a store read versions from its mirror that it lacks, by number or digest; nothing is written there."""

    elsewhere: Elsewhere

    def resolve(self, address: str) -> tuple[Version, ...]:
        """Return the versions that an address names now."""
        from muster.volumes.mirrors.elsewhere import version_of

        try:
            return super().resolve(address)
        except NotFound as lacks:
            return (version_of(self.elsewhere.find(address, lacks=lacks)),)

    def record(self, address: str) -> Record:
        """Return one version's record."""
        try:
            return super().record(address)
        except NotFound as lacks:
            return self.elsewhere.find(address, lacks=lacks).origin

    def records(self, addresses: Sequence[str]) -> list[Record]:
        """Return the record of each address, in their order."""
        try:
            return super().records(addresses)
        except NotFound:
            return [self.record(address) for address in addresses]

    def manifest(self, address: str) -> Listing:
        """Return every file of one version by its path."""
        try:
            return super().manifest(address)
        except NotFound as lacks:
            return self.elsewhere.find(address, lacks=lacks).entries

    def path(self, address: str) -> Path:
        """Return the folder of one version's data, or the file that the address names in it."""
        try:
            return super().path(address)
        except NotFound as lacks:
            found = self.elsewhere.find(address, lacks=lacks)
            return self.elsewhere.path(found, Address.parse(address).path)

    def lease(self, addresses: Iterable[str], *, holder: str) -> None:
        """Keep versions from gc while `holder` reads them; those of the mirror need no lease."""
        super().lease(filter(self._is_here, addresses), holder=holder)

    def _is_here(self, address: str) -> bool:
        try:
            return bool(super().resolve(address))
        except NotFound as lacks:
            self.elsewhere.find(address, lacks=lacks)
            return False

    def close(self) -> None:
        """Close open connections."""
        self.elsewhere.close()
        super().close()


class MirroredFolderStore(ReadsMirror, FolderStore):
    """A store in a folder that has a mirror."""


def folder_store(settings: Settings) -> FolderStore:
    """Open the store of this machine."""
    if not settings.mirror:
        return FolderStore(settings.store, compare=settings.compare)
    store = MirroredFolderStore(settings.store, compare=settings.compare)
    store.elsewhere = _elsewhere(settings)
    return store


def mirrored_service(kind: type[ServiceStore], settings: Settings) -> type[ServiceStore]:
    """Return a store service's client that has a mirror."""
    elsewhere = _elsewhere(settings)
    return type("MirroredServiceStore", (ReadsMirror, kind), {"elsewhere": elsewhere})


def _elsewhere(settings: Settings) -> Elsewhere:
    from muster.backends.mirrors import open_home
    from muster.volumes.mirrors.elsewhere import Elsewhere

    return Elsewhere(lambda: open_home(settings.mirror, settings), settings.cache / "mirrored")
